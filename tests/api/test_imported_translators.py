"""A translator of transformers as a run: its targets are those that the original generates, and again after export."""

import pytest

from conftest import call
from foreign import MAKERS
from translators import enliven

SOURCE = "the cat sat"


@pytest.mark.parametrize("name", ["Marian", "T5"])
def test_targets_are_those_of_the_original(name, tmp_path):
    """Greedy and beam search; the token that pads is likely, and their files say that it is never generated."""
    import torch
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    folder = MAKERS[name](tmp_path / "theirs")
    theirs = AutoModelForSeq2SeqLM.from_pretrained(folder)
    enliven(theirs)
    start = theirs.config.decoder_start_token_id
    with torch.no_grad():
        if name == "Marian":
            theirs.final_logits_bias[0, start] += 5
    theirs.generation_config.bad_words_ids = [[start]]
    theirs.save_pretrained(folder)

    def generated(path, **how):
        model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
        given = tokenizer(SOURCE, return_tensors="pt")
        ids = model.generate(**given, do_sample=False, max_new_tokens=11, **how)[0]
        return tokenizer.decode(ids, skip_special_tokens=True)

    beams = dict(num_beams=3, length_penalty=0.0, early_stopping="never")
    wanted = generated(folder, num_beams=1), generated(folder, **beams)
    assert all(wanted)
    run = str(tmp_path / "run")
    call("import", str(folder), "--out", run)
    how = ("--source", SOURCE, "--max-new-tokens", "11")
    greedy = call("sample", run, *how).stdout.rstrip("\n")
    best = call("sample", run, *how, "--beams", "3", "--length-penalty", "0", "--count", "1").stdout
    assert (greedy, best.rstrip("\n").partition("  ")[2]) == wanted
    call("export", run, "--to", "hf", "--out", str(tmp_path / "back"))
    assert (generated(tmp_path / "back", num_beams=1), generated(tmp_path / "back", **beams)) == wanted
