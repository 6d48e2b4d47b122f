"""What a checkpoint has beside its weights: names of classes, and how sentence-transformers pools its tokens."""

from collections.abc import Callable, Mapping
from typing import Any

from ...config import UserError
from ...files import parse_json, read_text
from ...models.reader import ReaderConfig
from ...runs.run import Run
from ...weights.checkpoint_files import LARGEST_CONFIG, Checkpoint, inside
from ..embedding import SECTION

MODULES, POOLING, CUT = "modules.json", "1_Pooling", "sentence_bert_config.json"
# the words for ways of pooling, of today and of older versions
POOLS = {"mean": "mean", "cls": "class", "mean_tokens": "mean", "cls_token": "class"}


def imported(checkpoint: Checkpoint, config: ReaderConfig) -> dict[str, Any]:
    """What a run keeps of a checkpoint besides its model: the names of its classes, and how texts become vectors."""

    def read(name: str) -> Any:
        if not (checkpoint.folder / name).exists():
            return None
        text = read_text(inside(checkpoint.folder, name), LARGEST_CONFIG)
        return parse_json(f'{{"content": {text}}}', str(checkpoint.folder / name))["content"]  # which may be a list

    tables = {SECTION: sentence_settings(read, config.context)}
    names = checkpoint.config.get("id2label")
    if config.classes and names:
        if sorted(names) != sorted(map(str, range(config.classes))):
            raise UserError(
                f"id2label of {checkpoint.where} has no name for each number from 0 to {config.classes - 1}"
            )
        tables["run"] = {"classes": [str(names[str(i)]) for i in range(config.classes)]}
    return tables


def exported(
    run: Run, config: ReaderConfig, library: str, described: dict[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """The files beside the weights by name: the config with the names of classes, and how the tokens are pooled."""
    names = list(map(str, run.config["run"].get("classes") or ()))
    if config.classes and len(names) == config.classes:
        described = described | {
            "id2label": {str(i): name for i, name in enumerate(names)},
            "label2id": {name: i for i, name in enumerate(names)},
        }
    table = run.config.get(SECTION)
    if not table:
        return {"config.json": described}, []
    kinds = ["Transformer", "Pooling", *["Normalize"] * bool(table.get("normalize"))]
    paths = ["", POOLING, "2_Normalize"]
    modules = [
        {"idx": i, "name": str(i), "path": paths[i], "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    pool = table.get("pool", "mean")
    pooling = {
        "word_embedding_dimension": config.width,
        "pooling_mode_cls_token": pool == "class",
        "pooling_mode_mean_tokens": pool == "mean",
    }
    cut = {"max_seq_length": table.get("context", config.context), "do_lower_case": False}
    return {"config.json": described, MODULES: modules, f"{POOLING}/config.json": pooling, CUT: cut}, []


def sentence_settings(read: Callable[[str], Any], context: int) -> dict[str, Any]:
    """The `[embed]` table of a folder of sentence-transformers; empty for another folder.

    `read` gives the content of a JSON file of the folder, or None. A module or a way of pooling that is not known is
    refused by name: the vectors would be others.
    """
    modules = read(MODULES)
    if modules is None:
        return {}
    kinds = [(str(one.get("type", "")).rpartition(".")[2], str(one.get("path", ""))) for one in modules]
    names = [kind for kind, _ in kinds]
    for name in names:
        if name not in ("Transformer", "Pooling", "Normalize"):
            raise UserError(
                f"modules.json has a {name}, which ours does not have: only Transformer, Pooling, Normalize"
            )
    if names not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise UserError(
            f"modules.json has {', '.join(names) or 'nothing'}: only Transformer, Pooling and Normalize fit"
        )
    pooling = kinds[1][1]
    table: dict[str, Any] = {"pool": _pool(read(f"{pooling}/config.json") or {}), "normalize": "Normalize" in names}
    prompts = read("config_sentence_transformers.json") or {}
    if prompts.get("default_prompt_name"):
        raise UserError(
            f"config_sentence_transformers.json puts the prompt {prompts['default_prompt_name']!r} before every text, "
            "which ours does not"
        )
    cut = read(CUT) or {}
    if cut.get("do_lower_case"):
        raise UserError("sentence_bert_config.json has do_lower_case, which ours does not have: only false")
    longest = cut.get("max_seq_length") or (read("tokenizer_config.json") or {}).get("model_max_length")
    if isinstance(longest, int) and 0 < longest < context:
        table["context"] = longest
    return table


def _pool(config: Mapping[str, Any]) -> str:
    """Our word for the way of pooling, which older versions spread over several fields."""
    ways = [
        name.removeprefix("pooling_mode_") for name, on in config.items() if name.startswith("pooling_mode_") and on
    ]
    given = config.get("pooling_mode")
    ways += given if isinstance(given, list) else [given] if given else []
    if len(ways) != 1 or ways[0] not in POOLS:
        raise UserError(f"this model pools its tokens by {' and '.join(ways) or 'no way'}, and ours by mean or cls")
    return POOLS[ways[0]]
