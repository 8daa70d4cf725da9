"""All families of checkpoints, a row each."""

from keras_vit.weights.families.family import Family
from keras_vit.weights.families.google import (
    BigTransfer,
    BigVision,
    Google,
)
from keras_vit.weights.families.hugging_face import (
    HuggingFace,
    HuggingFaceDeiT,
    HuggingFaceIJEPA,
    HuggingFaceMAE,
)
from keras_vit.weights.families.hugging_face_beit import (
    HuggingFaceBEiT,
    HuggingFaceData2Vec,
)
from keras_vit.weights.families.hugging_face_dino import (
    HuggingFaceDINOv2,
    HuggingFaceDINOv3,
    HuggingFaceGatedDINOv3,
)
from keras_vit.weights.families.hugging_face_radio import HuggingFaceRADIO
from keras_vit.weights.families.hugging_face_tf import (
    HuggingFaceTF,
    HuggingFaceTFCLIP,
    HuggingFaceTFData2Vec,
    HuggingFaceTFDeiT,
    HuggingFaceTFMAE,
)
from keras_vit.weights.families.hugging_face_towers import (
    HuggingFaceAIMv2,
    HuggingFaceCLIP,
    HuggingFaceMetaCLIP2,
    HuggingFaceSigLIP,
    HuggingFaceSigLIP2,
)
from keras_vit.weights.families.keras_cv import KerasCV
from keras_vit.weights.families.keras_hub import KerasHub
from keras_vit.weights.families.keras_hub_backbones import (
    KerasHubDeiT,
    KerasHubDINOv2,
    KerasHubDINOv3,
    KerasHubGatedDINOv3,
)
from keras_vit.weights.families.keras_hub_towers import KerasHubCLIP, KerasHubSigLIP
from keras_vit.weights.families.meta_dino import MetaDINOv2, MetaDINOv3
from keras_vit.weights.families.open_clip import OpenCLIP, OpenCLIPPooledFirst
from keras_vit.weights.families.open_clip_timm import OpenCLIPTimm, OpenCLIPTimmEva
from keras_vit.weights.families.timm import Timm, TimmBeit, TimmEva
from keras_vit.weights.families.timm_bit import TimmBit
from keras_vit.weights.families.timm_naflex import TimmNaFlex
from keras_vit.weights.families.vit_keras import ViTKeras, ViTKerasVariables

# By what reports and `published.tsv` call them.
FAMILIES: dict[str, Family] = {
    "google": Google(),
    "big_vision": BigVision(),
    "bit": BigTransfer(),
    # These before "timm", whose mark they have too.
    "meta_dinov2": MetaDINOv2(),
    "meta_dinov3": MetaDINOv3(),
    "timm": Timm(),
    "timm_eva": TimmEva(),
    "timm_beit": TimmBeit(),
    "timm_naflex": TimmNaFlex(),
    "timm_bit": TimmBit(),
    "hugging_face_clip": HuggingFaceCLIP(),
    "hugging_face_siglip": HuggingFaceSigLIP(),
    "hugging_face_siglip2": HuggingFaceSigLIP2(),
    "hugging_face_aimv2": HuggingFaceAIMv2(),
    "hugging_face_dinov3_swiglu": HuggingFaceGatedDINOv3(),
    "hugging_face_dinov3": HuggingFaceDINOv3(),
    # These before "hugging_face", whose mark they have too.
    "hugging_face_dinov2": HuggingFaceDINOv2(),
    "hugging_face_beit": HuggingFaceBEiT(),
    "hugging_face_radio": HuggingFaceRADIO(),
    "hugging_face": HuggingFace(),
    # Its arrays are told apart by a config only.
    "hugging_face_deit": HuggingFaceDeiT(),
    "hugging_face_data2vec": HuggingFaceData2Vec(),
    "hugging_face_metaclip2": HuggingFaceMetaCLIP2(),
    "hugging_face_mae": HuggingFaceMAE(),
    "hugging_face_ijepa": HuggingFaceIJEPA(),
    "hugging_face_tf_clip": HuggingFaceTFCLIP(),
    "hugging_face_tf_data2vec": HuggingFaceTFData2Vec(),
    "hugging_face_tf": HuggingFaceTF(),
    "hugging_face_tf_deit": HuggingFaceTFDeiT(),
    "hugging_face_tf_mae": HuggingFaceTFMAE(),
    "keras_hub": KerasHub(),
    "keras_hub_deit": KerasHubDeiT(),
    "keras_hub_dinov2": KerasHubDINOv2(),
    "keras_hub_dinov3_swiglu": KerasHubGatedDINOv3(),
    "keras_hub_dinov3": KerasHubDINOv3(),
    "keras_hub_clip": KerasHubCLIP(),
    "keras_hub_siglip": KerasHubSigLIP(),
    "keras_cv": KerasCV(),
    "open_clip": OpenCLIP(),
    # Its arrays are told apart by a config only.
    "open_clip_pooled_first": OpenCLIPPooledFirst(),
    "open_clip_timm": OpenCLIPTimm(),
    "open_clip_timm_eva": OpenCLIPTimmEva(),
    "vit_keras": ViTKeras(),
    "vit_keras_variables": ViTKerasVariables(),
}
