from ._measuring import transplant as transplant, transplant_all as transplant_all
from ._results import (
    Answers as Answers,
    Localisation as Localisation,
    Transplant as Transplant,
    transplants_frame as transplants_frame,
)
