from ._annotate import Word as Word, annotate as annotate, words_of as words_of
from ._annotations import AnnotateOptions as AnnotateOptions, Annotations as Annotations, Finding as Finding
from ._language_model import language_model_prompts as language_model_prompts
