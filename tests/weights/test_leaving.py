"""Leaving for other engines: an exported run has what vLLM needs of a folder, and torchtitan's reader reads it."""

import json

import pytest
import torch
from safetensors import safe_open

from conftest import call

# text generation: the names under which vLLM has the architectures that a gpt is exported as
KNOWN = {"GPT2LMHeadModel", "LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM",
         "GPTNeoXForCausalLM"}  # fmt: skip
# two of the presets' forms: what a gpt is unless told otherwise, and LLaMA's
FORMS = {"plain": [], "llama": ["--preset", "llama-nano", "--tokenizer", "bpe", "--vocab", "300"]}


@pytest.fixture(scope="module", params=FORMS)
def exported(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("leaving")
    (folder / "notes.txt").write_text("".join(f"the cat sat on mat {i}.\n" for i in range(400)))
    call("train", "gpt", "--data", folder / "notes.txt", "--out", folder / "run", *FORMS[request.param],
          "--model.width", 48, "--model.heads", 6, "--model.depth", 2, "--model.context", 23, "--train.steps", 2,
          "--train.eval_every", 2, "--train.eval_batches", 1, "--train.batch", 4, "--train.warmup", 0)  # fmt: skip
    for dtype in ("float32", "bfloat16"):
        call("export", folder / "run", "--to", "hf", "--dtype", dtype, "--out", folder / dtype)
    return folder


def test_transformers_loads_the_folder_and_computes_the_same(exported):
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    from pencil.api.loading import load

    ours = load(exported / "run")
    theirs, tokenizer = (kind.from_pretrained(exported / "float32") for kind in (AutoModelForCausalLM, AutoTokenizer))
    text = "the cat sat"
    ids = torch.tensor([ours.tokenizer.encode(text).tolist()])
    assert tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"].tolist() == ids.tolist()
    with torch.no_grad():
        torch.testing.assert_close(theirs(ids).logits, ours.model(ids), rtol=0, atol=1e-5)
    written = theirs.generate(ids, max_new_tokens=5, do_sample=False)[0].tolist()
    assert text in tokenizer.decode(written)
    GenerationConfig.from_pretrained(exported / "float32")


def test_the_folder_has_what_vllm_needs(exported):
    from pencil.api.loading import load

    folder, ours = exported / "bfloat16", load(exported / "run").model
    config = json.loads((folder / "config.json").read_text())
    assert {*config["architectures"]} <= KNOWN
    assert config["max_position_embeddings"] == ours.config.context
    assert config["vocab_size"] == ours.config.vocab
    assert [path.name for path in folder.glob("*.safetensors*")] == ["model.safetensors"]
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"BF16"}  # noqa: SIM118
        assert file.metadata()["format"] == "pt"
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    assert tokenizer["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert "auto_map" not in config
    assert "auto_map" not in tokenizer
    assert (folder / "tokenizer.json").exists()
    assert "eos_token_id" in json.loads((folder / "generation_config.json").read_text())


def test_torchs_reader_of_such_folders_reads_it(exported):
    """By it torchtitan loads a checkpoint of the hub."""
    import torch.distributed.checkpoint as dcp
    from transformers import AutoModelForCausalLM

    folder = exported / "float32"
    expected = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    with safe_open(folder / "model.safetensors", "pt") as file:
        names = [*file.keys()]
    found = {name: torch.empty_like(expected[name]) for name in names}
    dcp.load(found, storage_reader=dcp.HuggingFaceStorageReader(str(folder)), no_dist=True)
    assert all(torch.equal(found[name], expected[name]) for name in names)
