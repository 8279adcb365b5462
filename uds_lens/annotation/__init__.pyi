from ._annotate import annotate as annotate
from ._annotations import AnnotateOptions as AnnotateOptions, Annotations as Annotations
from ._language_model import language_model_prompts as language_model_prompts
