from ._annotate import annotate as annotate
from ._annotations import AnnotateOptions as AnnotateOptions
from ._annotations import Annotations as Annotations
from ._annotations import Finding as Finding
from ._ways import Word as Word
from ._ways import words_of as words_of
