"""Classes of transformers and peft as they come, small, for the tests of models of today."""

from typing import Any

from fedpers.core.torchvision import import_torchvision

import_torchvision()  # transformers imports it
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def bert(num_classes: int = 3, dropout: float = 0.0, **more: Any) -> Any:
    """BertForSequenceClassification; attention's own Dropout is 0, which is a function."""
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(
        BertConfig(vocab_size=20, num_labels=num_classes, hidden_dropout_prob=dropout,
                   max_position_embeddings=16, attention_probs_dropout_prob=0.0, **{**SMALL, **more})
    )  # fmt: skip


def llama(num_classes: int = 3) -> Any:
    """LlamaForSequenceClassification, whose head is called score and has no bias."""
    from transformers import LlamaConfig, LlamaForSequenceClassification

    return LlamaForSequenceClassification(
        LlamaConfig(
            vocab_size=20, num_labels=num_classes, pad_token_id=0, max_position_embeddings=16, **SMALL
        )
    )


def vit(num_classes: int = 3) -> Any:
    """ViTForImageClassification, which takes pixel_values."""
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(
        ViTConfig(num_labels=num_classes, image_size=4, patch_size=2, num_channels=1, hidden_dropout_prob=0.0,
                  attention_probs_dropout_prob=0.0, **SMALL)
    )  # fmt: skip


def peft_bert(num_classes: int = 3, dropout: float = 0.0) -> Any:
    """A BERT under get_peft_model, as its user would give it."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(task_type="SEQ_CLS", r=2, lora_alpha=4, target_modules=["query", "value"],
                        lora_dropout=dropout)  # fmt: skip
    return get_peft_model(bert(num_classes), config)
