"""What a library is for: whether time in it is preprocessing, logging, a checkpoint, or a framework's own."""

from __future__ import annotations

from perfkit.measures.results.host import HostKind


def _libraries(*words: str) -> frozenset[str]:
    return frozenset(name for part in words for name in part.split())


#: Libraries by kind, named as by `perfkit._code_owner.library_of`; the first that fits counts. A name
#: includes its submodules (``torch.distributed`` would include ``torch.distributed.checkpoint``).
_KINDS: tuple[tuple[HostKind, frozenset[str]], ...] = (
    ("checkpoint", _libraries("checkpoint torch.serialization safetensors orbax joblib cloudpickle dill")),
    (
        "logging",
        _libraries(
            "torch.utils.tensorboard tensorboard tensorboardX wandb mlflow neptune comet_ml clearml aim swanlab",
            "dvclive trackio logging loguru structlog tqdm rich matplotlib seaborn plotly",
            "lightning.logging pytorch_lightning.logging",
            # What a tensor looks like as text.
            "torch._tensor_str",
        ),
    ),
    (
        "metrics",
        _libraries("torchmetrics torcheval sklearn.metrics ignite.metrics evaluate seqeval rouge_score sacrebleu"),
    ),
    (
        # They decode, tokenize, parse or transform what a model is fed with.
        "preprocessing",
        _libraries(
            "PIL cv2 torchvision torchaudio torchcodec librosa soundfile skimage imageio albumentations imgaug kornia",
            "tokenizers transformers.tokenization transformers.tokenization_python transformers.image",
            "sentencepiece tiktoken spacy nltk sacremoses",
            "re regex html xml unicodedata gzip zlib bz2 lzma zipfile tarfile base64",
            "pandas polars pyarrow datasets h5py zarr pydicom nibabel decord av",
        ),
    ),
)
#: They read what a model is fed with, and write what a person reads once the model has run: text and files.
_TEXT_AND_FILES = _libraries(
    "json csv pprint yaml tomllib",
    "pathlib shutil tempfile io codecs pickle sqlite3 socket ssl http urllib",
)
#: Models of packages that are above for what prepares their inputs.
_MODELS = _libraries("torchvision.models torchvision.ops torchaudio.models kornia.models")
#: Where a copy of weights is made: of tensors, and of a module's parameters.
_COPIED = _libraries("torch._tensor torch.nn")
#: They run the loop: time in them, and in nothing that they call, is no work of a line of the user's.
_FRAMEWORKS = _libraries("torch lightning pytorch_lightning lightning_fabric transformers accelerate ignite")


def kind_of(within: str, before_model: bool, waits: bool = False) -> HostKind | None:
    """What time in these libraries, called from a user's line, is for; None for torch's own and the frameworks'.

    Args:
        within: Libraries, outermost first, as in `perfkit.run.records.LineRow.within`.
        before_model: Whether the line runs before the model in its step.
        waits: Whether the thread uses no processor meanwhile.
    """
    names = within.split(" > ") if within else []
    if "torch.utils.data" in names:
        return None  # the loader's own: starting its workers, too, is part of waiting for data
    if not _MODELS.isdisjoint(names):
        return None
    tops = {name.split(".")[0] for name in names}
    for kind, libraries in _KINDS:
        if not libraries.isdisjoint(tops | set(names)):
            return kind
    if names[:1] == ["copy"] and not _COPIED.isdisjoint(names):
        return "checkpoint"  # copy.deepcopy(model), or of its state_dict(): the weights are saved, in memory
    if not _FRAMEWORKS.isdisjoint(tops):
        return None
    if waits or names[:1] == ["subprocess"]:
        return "waiting"  # for another program: what starting it takes of the processor is part of that
    if before_model:
        return "preprocessing"
    return "python" if _TEXT_AND_FILES.isdisjoint(names) else "logging"
