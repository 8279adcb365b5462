from ._annotate import annotate as annotate
from ._annotations import AnnotateOptions as AnnotateOptions, Annotations as Annotations, Finding as Finding
from ._ways import Word as Word, words_of as words_of
