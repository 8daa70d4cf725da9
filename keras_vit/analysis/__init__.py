"""What a model has learned, as arrays (section 4.5; Figures 6, 7, 10, 11 and 14).

    embedding_filters     principal components of the first filters
    position_similarity   cosines of the position embeddings
    attention_distance    mean attention distance by head and depth
    class_attention       attention from the output to the patches, by head
    attention_rollout     the same through all blocks

`keras-vit inspect` draws them. A model that lacks what one of them looks at is refused
with a `NotApplicableError`.
"""

from keras_vit.analysis.distance import attention_distance
from keras_vit.analysis.filters import embedding_filters
from keras_vit.analysis.maps import attention_rollout, class_attention
from keras_vit.analysis.similarity import position_similarity
from keras_vit.errors import NotApplicableError

__all__ = [
    "NotApplicableError",
    "attention_distance",
    "attention_rollout",
    "class_attention",
    "embedding_filters",
    "position_similarity",
]
