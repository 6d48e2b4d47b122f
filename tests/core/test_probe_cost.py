"""Observing off costs nothing: the compiled graph is that of a copy of the library without probes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

# a process of its own: the shapes that tests check would be in the graph of one library and not of the other
CODE = """
import json, sys
sys.path.insert(0, sys.argv[1])
import bare, torch
from pencil import families

SIZES = {
    "gpt": dict(vocab=37, context=11, width=24, depth=1, heads=3),
    "reader": dict(vocab=37, context=11, width=24, depth=1, heads=3),
    "seq2seq": dict(vocab=37, context=11, source_context=7, width=24, depth=1, heads=3, bias=True),
    "dit": dict(image_size=(4, 6), channels=3, patch=(2, 2), width=24, depth=1, heads=3, classes=5),
    "vit": dict(image_size=(6, 10), channels=3, patch=(2, 5), width=24, depth=1, heads=3, classes=7),
    "captioner": dict(image_size=(6, 10), channels=3, patch=(2, 5), width=24, depth=1, heads=3, vocab=29, context=7),
}

class Loud:
    def __truediv__(self, name):
        raise AssertionError
    def __call__(self, name, value):
        raise AssertionError

def graph(model):
    seen = []
    def keep(module, inputs):
        seen.extend((n.op, str(n.target), str(n.args), str(n.kwargs)) for n in module.graph.nodes)
        return module.forward
    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(model, backend=keep, fullgraph=True)(*model.example(2))
    return seen

def called(model):
    try:
        model(*model.example(1), probe=Loud())
    except AssertionError:
        return True
    return False

out, plain = {}, bare.families()
for family, sizes in SIZES.items():
    ours = families.create(family, families.configure(family, None, **sizes)).eval()
    theirs = plain.create(family, plain.configure(family, None, **sizes)).eval()
    theirs.load_state_dict(ours.state_dict())
    mine, other = graph(ours), graph(theirs)
    same = torch.equal(ours(*ours.example(2)), theirs(*theirs.example(2)))
    out[family] = [len(mine), mine == other, same, called(ours), called(theirs)]
print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def found():
    tests = str(Path(__file__).parents[1] / "helpers")
    counts = subprocess.run([sys.executable, "-c", CODE, tests], capture_output=True, text=True, check=False)
    assert counts.returncode == 0, counts.stderr[-2000:]
    return json.loads(counts.stdout.splitlines()[-1])


@pytest.mark.long
@pytest.mark.parametrize("family", ["gpt", "vit", "captioner", "reader", "seq2seq", "dit"])
def test_the_compiled_graph_is_that_of_a_model_without_probes(found, family):
    count, same_graph, same_values, ours_calls, copy_calls = found[family]
    assert count > 20
    assert same_graph
    assert same_values
    assert ours_calls, "the probe is called where there is one"
    assert not copy_calls, "the copy has none left"
