"""The captioner against the formulas written out, and against its ViT and GPT halves; the proofs of every family."""

import math

import hypothesis.strategies as st
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import small_models
from conftest import unchecked
from pencil.core.masks import NOWHERE
from pencil.core.notation import Notation
from pencil.core.positions import Learned
from pencil.core.probe import Probe
from pencil.core.span import Span
from pencil.families import configure, create
from pencil.inference.generation import Generation
from pencil.inference.sampling import Sampling
from pencil.models.captioner import attention_maps
from pencil.models.gpt import GPTConfig
from pencil.models.vit import ViTConfig
from pencil.train.losses.cross_entropy import next_token
from small_models import SCHEMES

SIZES = small_models.SIZES["captioner"]
KINDS = small_models.KINDS["captioner"]


def tiny(**values):
    return small_models.tiny("captioner", **values)


def tokens(*shape, vocab=101):
    return torch.randint(0, vocab, shape, generator=torch.Generator().manual_seed(7))


def pictures(count, channels=3, height=6, width=10):
    return torch.randn(count, channels, height, width, generator=torch.Generator().manual_seed(5))


# the model once more, from its weights and its config alone: one sequence, one head at a time


def angles_at(place, pairs, base):
    """The angles of one place: the axes share the pairs, the first taking what is left over."""
    angles = []
    for axis, position in enumerate(place):
        n = pairs // len(place) + (1 if axis < pairs % len(place) else 0)
        angles += [position * base ** (-i / n) for i in range(n)]
    return torch.tensor(angles, dtype=torch.float64)


def embedded(x, scheme, table, position, place):
    if scheme == "learned":
        return x + table[position]
    if scheme == "sinusoidal":
        angles = angles_at(place, len(x) // 2, 10000.0)
        return x + torch.stack([angles.sin(), angles.cos()], 1).flatten()
    if scheme == "sinusoidal-halves":
        angles = angles_at(place, len(x) // 2, 10000.0)
        return x + torch.cat([angles.sin(), angles.cos()])
    return x


def bucket(distance, both):
    """T5's, by its definition: 32 in all, half of them for keys ahead in both directions; max_distance 128."""
    count = 16 if both else 32
    far, half = abs(distance) if both else max(-distance, 0), count // 2
    if far >= half:
        far = min(half + int(math.log(far / half) / math.log(128 / half) * half + 1e-6), count - 1)
    return far + count * (both and distance > 0)


def added(scheme, table, heads, both, query, key, q):
    """What a scheme adds to the scores of one query for one key, for each head's q."""
    offsets = [b - a for a, b in zip(query, key, strict=True)]
    if scheme == "alibi":
        assert heads == 3
        far = torch.tensor(math.hypot(*offsets), dtype=torch.float32).item()  # a distance is kept in float32
        return [-slope * far for slope in (1 / 16, 1 / 256, 1 / 4)]
    if scheme == "shaw":
        rows = [table[axis, max(-16, min(16, n)) + 16] for axis, n in enumerate(offsets)]
        return [float(sum(rows) @ q[h]) / math.sqrt(len(q[h])) for h in range(heads)]
    if scheme == "t5":
        return [sum(float(table[axis, bucket(n, both), h]) for axis, n in enumerate(offsets)) for h in range(heads)]
    return [0.0] * heads


def normed(x, w, name, c):
    gain, shift = w[f"{name}.weight"], w.get(f"{name}.bias", 0)
    if c.norm == "rms":
        return x / (x.square().mean(-1, keepdim=True) + c.eps).sqrt() * gain
    mean = x.mean(-1, keepdim=True)
    return (x - mean) / ((x - mean).square().mean(-1, keepdim=True) + c.eps).sqrt() * gain + shift


def mapped(x, w, name):
    return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0)


def activated(x, w, name, c):
    if c.activation == "swiglu":
        gate = mapped(x, w, f"{name}.gate")
        return mapped(gate / (1 + (-gate).exp()) * mapped(x, w, f"{name}.up"), w, f"{name}.down")
    u = mapped(x, w, f"{name}.up")
    if c.activation == "gelu-tanh":
        g = u * (1 + torch.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u**3))) / 2
    elif c.activation == "relu":
        g = u * (u > 0)
    elif c.activation == "silu":
        g = u / (1 + (-u).exp())
    else:
        g = u * (1 + torch.erf(u / math.sqrt(2))) / 2
    return mapped(g, w, f"{name}.down")


def by_hand(model, text, image):
    """The logits of one text after one picture."""
    c, w = model.config, model.state_dict()
    d, (ph, pw) = c.width // c.heads, c.patch
    rows, columns = c.image_size[0] // ph, c.image_size[1] // pw
    image_scheme, half = c.image_positions or c.positions, int(d * c.rope_fraction) // 2
    sequence, rotations, places = [], [], []

    def add(x, kind, angles, place=None):
        sequence.append(x + w["types"][kind] if c.type_embeddings else x)
        rotations.append(torch.zeros(half, dtype=torch.float64) if angles is None else angles)
        places.append((kind, place))

    begun, ended = c.delimiters in ("begin", "both"), c.delimiters in ("end", "both")

    def add_mark(mark, position, place):
        """A delimiter; its row of a learned table and its place count only where it has a position."""
        if not c.delimiter_positions:
            add(mark, 0, None)
            return
        x = embedded(mark, image_scheme, w.get("image_positions.table"), position, place)
        add(x, 0, angles_at(place, half, c.rope_theta) if image_scheme == "rope" else None, place)

    first = int(begun and c.delimiter_positions)
    if begun:
        add_mark(w["marks"][0], 0, (0, -1))
    for row in range(rows):
        for column in range(columns):
            square = image[:, row * ph : (row + 1) * ph, column * pw : (column + 1) * pw]
            x = mapped(square.flatten(), w, "patches.proj")
            if c.image_width:
                x = mapped(x, w, "project.map")
            place = (row, column)
            x = embedded(x, image_scheme, w.get("image_positions.table"), first + row * columns + column, place)
            add(x, 0, angles_at(place, half, c.rope_theta) if image_scheme == "rope" else None, place)
    if ended:
        add_mark(w["marks"][-1], first + rows * columns, (rows - 1, columns))
    before = len(sequence)
    for position, token in enumerate(text.tolist()):
        x = w["tokens.weight"][token]
        x = x if c.text_width is None else w["text_project.map.weight"] @ x
        x = embedded(x, c.positions, w.get("positions.table"), position, (position,))
        add(x, 1, angles_at((position,), half, c.rope_theta) if c.positions == "rope" else None, (position,))
    x, total = torch.stack(sequence), len(sequence)

    def seen(query, key):
        return key <= query or (c.mask == "prefix" and key < before)

    def rotated(head):
        out = head.clone()
        for t, angle in enumerate(rotations):
            a, b = head[t, :half], head[t, half : 2 * half]
            out[t, :half] = a * angle.cos() - b * angle.sin()
            out[t, half : 2 * half] = a * angle.sin() + b * angle.cos()
        return out

    def bias(h, t, s, q):
        """Among patches, or among words; a delimiter has no position, and between word and patch there is none."""
        (kind, query), (other, key) = places[t], places[s]
        if kind != other or query is None or key is None:
            return 0.0
        scheme, name = (c.positions, "positions") if kind else (image_scheme, "image_positions")
        return added(scheme, w.get(f"{name}.table"), c.heads, not kind, query, key, [q] * c.heads)[h]

    scale = 1.0 if c.positions == "t5" else 1 / math.sqrt(d)

    groups = c.kv_heads or c.heads
    for i in range(c.depth):
        joined = mapped(normed(x, w, f"blocks.{i}.attn_norm", c), w, f"blocks.{i}.attn.qkv")
        out = []
        for h in range(c.heads):
            g = h // (c.heads // groups)
            at = [h * d, c.heads * d + g * d, (c.heads + groups) * d + g * d]
            q, k, v = (joined[:, start : start + d] for start in at)
            q, k = rotated(q), rotated(k)
            head = torch.zeros(total, d, dtype=torch.float64)
            for t in range(total):
                keys = [s for s in range(total) if seen(t, s)]
                biases = torch.tensor([bias(h, t, s, q[t]) for s in keys], dtype=torch.float64)
                weights = (k[keys] @ q[t] * scale + biases).exp()
                head[t] = weights / weights.sum() @ v[keys]
            out.append(head)
        x = x + mapped(torch.cat(out, 1), w, f"blocks.{i}.attn.out")
        x = x + activated(normed(x, w, f"blocks.{i}.mlp_norm", c), w, f"blocks.{i}.mlp", c)
    x = normed(x[before:], w, "norm", c)
    if not c.tie_embeddings:
        return mapped(x, w, "head")
    table = w["tokens.weight"] if c.text_width is None else w["tokens.weight"] @ w["text_project.map.weight"].T
    return x @ table.T


@pytest.mark.proof("parity with a reference on random weights", "captioner")
@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_the_formulas_written_out(kind):
    model, ids, picture = tiny(**KINDS[kind]).double(), tokens(2, 7), pictures(2).double()
    with torch.no_grad():
        found = model(ids, picture)
        expected = torch.stack([by_hand(model, *pair) for pair in zip(ids, picture, strict=True)])
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-9)


@pytest.mark.proof("parity with a reference on random weights", "captioner")
@pytest.mark.parametrize("scheme", SCHEMES)
def test_its_picture_half_is_a_vit_of_the_same_weights(scheme):
    """The patches do not attend to the words, so their half of every block is the ViT's."""
    model = tiny(positions=scheme, type_embeddings=False, delimiters="none", bias=True, eps=1e-6)
    twin = create("vit", ViTConfig(
        **{name: SIZES[name] for name in ("image_size", "channels", "patch", "width", "depth", "heads", "hidden")},
        positions=scheme, pool="mean",
    )).eval()  # fmt: skip
    ours = {name.replace("image_positions", "positions"): t for name, t in model.state_dict().items()
            if not name.startswith(("positions", "tokens"))}  # fmt: skip
    missing = twin.load_state_dict(ours, strict=False)
    assert not missing.unexpected_keys
    assert set(missing.missing_keys) == {"head.weight", "head.bias"}
    mine, theirs = Probe("blocks.*.post"), Probe("blocks.*.post")
    model(tokens(2, 7), pictures(2), probe=mine)
    twin(pictures(2), probe=theirs)
    assert len(mine.values) == len(theirs.values) == 2
    for name, value in theirs.values.items():
        torch.testing.assert_close(mine.values[name][:, :6], value, atol=1e-5, rtol=1e-5)


@pytest.mark.proof("parity with a reference on random weights", "captioner")
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("mask", ["causal", "prefix"])
def test_its_text_half_is_a_gpt_of_the_same_weights(scheme, mask):
    """With every score of a word for a patch masked, the words are alone."""
    model = tiny(positions=scheme, mask=mask, type_embeddings=False, kv_heads=1)
    twin = create("gpt", GPTConfig(
        **{name: SIZES[name] for name in ("vocab", "context", "width", "depth", "heads", "hidden")},
        positions=scheme, kv_heads=1, rope_theta=100.0,
    )).eval()  # fmt: skip
    ours = {name: t for name, t in model.state_dict().items() if not name.startswith(("p", "image_positions", "marks"))}
    if hasattr(model.positions, "table"):
        ours["positions.table"] = model.positions.table
    twin.load_state_dict(ours)
    before = model.config.before

    def strike_out(scores):
        scores = scores.clone()
        scores[:, :, before:, :before] = -torch.inf
        return scores

    ids = tokens(2, 11)
    alone = model(ids, pictures(2), probe=Probe(edit={"blocks.*.attn.scores": strike_out}))
    torch.testing.assert_close(alone, twin(ids), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(model(ids, pictures(2)), alone, atol=1e-3)


@pytest.mark.proof("cached = uncached under random chunking and mixed lengths", "captioner")
@settings(max_examples=40)
@given(data=st.data(), kind=st.sampled_from(sorted(KINDS)))
@unchecked()
def test_cached_equals_uncached_under_any_chunking(data, kind):
    """The picture comes with the first chunk, and with no other."""
    model, picture = small_models.exact("captioner", kind), pictures(2).double()
    total = data.draw(st.integers(1, 11))
    ids = tokens(2, total)
    cache = model.new_cache(2, data.draw(st.integers(total, 13)))
    pieces, at = [], 0
    with torch.no_grad():
        while at < total:
            step = data.draw(st.integers(1, total - at))
            pieces.append(model(ids[:, at : at + step], None if at else picture, cache=cache))
            at += step
        torch.testing.assert_close(torch.cat(pieces, 1), model(ids, picture), atol=1e-9, rtol=1e-9)


@pytest.mark.proof("cached = uncached under random chunking and mixed lengths", "captioner")
@settings(max_examples=24)
@given(lengths=st.lists(st.integers(1, 7), min_size=2, max_size=4), steps=st.integers(1, 4),
       kind=st.sampled_from(sorted(KINDS)), right=st.booleans())  # fmt: skip
@unchecked()
def test_a_batch_of_mixed_lengths_equals_each_row_alone(lengths, steps, kind, right):
    model, picture = small_models.exact("captioner", kind), pictures(len(lengths)).double()
    longest = max(lengths)
    rows = tokens(len(lengths), longest + steps)
    index = torch.full((len(lengths), longest), NOWHERE)
    ids = torch.zeros(len(lengths), longest, dtype=torch.long)
    for i, n in enumerate(lengths):  # padding may be on either side
        place = slice(0, n) if right else slice(longest - n, longest)
        index[i, place] = torch.arange(n)
        ids[i, place] = rows[i, :n]
    cache = model.new_cache(len(lengths), longest + steps)
    with torch.no_grad():
        model(ids, picture, Span.of(index, index.masked_fill(index >= NOWHERE, 0)[..., None]), cache)
        for step in range(steps):
            new = torch.stack([rows[i, n + step] for i, n in enumerate(lengths)])[:, None]
            together = model(new, cache=cache)[:, -1]
        for i, n in enumerate(lengths):
            alone = model(rows[i : i + 1, : n + steps], picture[i : i + 1])[:, -1]
            torch.testing.assert_close(together[i : i + 1], alone, atol=1e-9, rtol=1e-9)


def test_a_cache_holds_the_same_places_however_the_tokens_came():
    """Patches at (row, column), the delimiters at (0, 0), and words at (position, 0)."""
    model, ids, picture = tiny(), tokens(2, 7), pictures(2)
    whole, pieces = model.new_cache(2, 7), model.new_cache(2, 7)
    with torch.no_grad():
        model(ids, picture, cache=whole)
        for at in range(7):
            model(ids[:, at : at + 1], None if at else picture, cache=pieces)
    words = [[position, 0] for position in range(7)]
    places = [[0, 0], [0, 0], [0, 1], [1, 0], [1, 1], [2, 0], [2, 1], [0, 0], *words]
    for cache in (whole, pieces):
        assert cache.index[:, :-1].tolist() == [list(range(15))] * 2
        assert cache.coords[:, :-1].tolist() == [places] * 2


def grow(model, prompts, new, how=None, **options):
    made = Generation(model, prompts, new, how, **options)
    for _ in made:
        pass
    return made.rows, made.reasons


@pytest.mark.proof("cached = uncached under random chunking and mixed lengths", "captioner")
@settings(max_examples=7)
@given(lengths=st.lists(st.integers(1, 7), min_size=2, max_size=3), kind=st.sampled_from(sorted(KINDS)),
       temperature=st.sampled_from([0.0, 1.3]), end=st.sampled_from([None, 17]))  # fmt: skip
@pytest.mark.long
@unchecked()
def test_prompts_of_different_lengths_and_pictures_grow_as_each_would_alone(lengths, kind, temperature, end):
    model, picture = tiny(**KINDS[kind]), pictures(len(lengths))
    prompts = [row[:n].tolist() for row, n in zip(tokens(len(lengths), 7), lengths, strict=True)]
    how = Sampling(temperature, seed=3)
    together, reasons = grow(model, prompts, 9, how, end=end, given={"picture": picture})
    for i, prompt in enumerate(prompts):
        its = {"picture": picture[i : i + 1]}
        (alone,), (reason,) = grow(model, [prompt], 9, how, end=end, given=its, cached=i > 0)
        assert together[i] == alone
        assert reasons[i] == reason


def test_another_picture_gives_other_words():
    model, how = tiny(), Sampling(0)
    rows, _ = grow(model, [[1], [1]], 9, how, given={"picture": pictures(2)})
    assert rows[0] != rows[1]


def test_the_picture_is_read_once_however_much_is_generated(monkeypatch):
    model, count = tiny(context=13), 0
    read = model.patches.forward

    def counted(*args, **options):
        nonlocal count
        count += 1
        return read(*args, **options)

    monkeypatch.setattr(model.patches, "forward", counted)
    (row,), _ = grow(model, [[1, 2]], 10, given={"picture": pictures(1)})
    assert len(row) == 12
    assert count == 1


def test_a_picture_given_again_or_never_is_refused():
    model, ids, picture = tiny(), tokens(2, 3), pictures(2)
    cache = model.new_cache(2)
    for first in (None, cache):
        with pytest.raises(ValueError, match="read once"):
            model(ids, cache=first)
    with torch.no_grad():
        model(ids, picture, cache=cache)
    with pytest.raises(ValueError, match="read once"):
        model(ids, picture, cache=cache)
    assert cache.filled == 8 + 3


def test_a_picture_of_another_shape_is_refused_with_both_shapes_named():
    with pytest.raises(ValueError, match="3×10×6 .* takes 3×6×10"):
        tiny()(tokens(1, 2), torch.zeros(1, 3, 10, 6))


def test_only_the_last_logits_when_requested():
    model, ids = tiny(), tokens(2, 7)
    torch.testing.assert_close(model(ids, pictures(2), last=True), model(ids, pictures(2))[:, -1:])


@pytest.mark.parametrize("mask", ["causal", "prefix"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_who_sees_whom(scheme, mask):
    """A word never attends to a later one, a patch never to a word, and patches to later ones only under the prefix."""
    model, ids, picture = tiny(positions=scheme, mask=mask, delimiters="none"), tokens(1, 11), pictures(1)

    def inside(ids, picture):
        probe = Probe("blocks.1.post")
        with torch.no_grad():
            logits = model(ids, picture, probe=probe)
        return probe.values["blocks.1.post"], logits

    before, logits = inside(ids, picture)
    other = ids.clone()
    other[0, 5:] = (other[0, 5:] + 1) % 101
    after, output = inside(other, picture)
    assert torch.equal(before[:, :11], after[:, :11])  # 6 patches and 5 words
    assert torch.equal(logits[:, :5], output[:, :5])
    assert not torch.equal(logits[:, 5], output[:, 5])

    changed = picture.clone()
    changed[:, :, 4:, 5:] += 1  # the last of the six patches
    after, output = inside(ids, changed)
    assert not torch.equal(logits[:, 0], output[:, 0])
    for patch in range(5):
        assert torch.equal(before[:, patch], after[:, patch]) == (mask == "causal"), patch


class Squares(TorchDispatchMode):
    """Counts the tensors made whose last two sides are both `size`."""

    def __init__(self, size):
        super().__init__()
        self.size, self.count = size, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for value in tree_leaves(made):
            if isinstance(value, torch.Tensor) and value.shape[-2:] == (self.size, self.size):
                self.count += 1
        return made


@pytest.mark.parametrize("kv_heads, training", [(3, False), (1, False), (3, True)])
def test_a_prefix_needs_no_square_of_all_tokens(kv_heads, training):
    model = tiny(kv_heads=kv_heads, dropout=0.1).train(training)
    tokens_in_all = 8 + 11
    here = Span.whole(tokens_in_all).under(model.mask)
    assert here.seen.route == "prefix"
    assert here.seen.first == 8
    assert here.seen.allowed is None
    with Squares(tokens_in_all) as fast:
        next_token(model(tokens(2, 11), pictures(2)), tokens(2, 11)).backward()
    assert fast.count == 0
    with Squares(tokens_in_all) as observed:
        model(tokens(2, 11), pictures(2), probe=Probe())
    assert observed.count > 0  # the plain route does build it, and is seen to


@pytest.mark.parametrize("tied", [True, False])
def test_the_names_have_the_shapes_of_the_notation(golden, tied):
    """Part II of the notation, at its own sizes; one head, so the head axis is 1."""
    entry = golden["001-vit-shapes"]
    size, shape = entry["inputs"], entry["expected"]
    config = configure(
        "captioner", "seed", image_size=(size["H"], size["W"]), channels=size["C"], patch=(size["P"], size["P"]),
        vocab=size["V"], context=size["T"], width=size["D"], depth=size["L"], heads=1, hidden=size["d_ff"],
        tie_embeddings=tied,
    )  # fmt: skip
    model, probe = create("captioner", config), Probe()
    model(
        tokens(size["B"], size["T"], vocab=size["V"]), pictures(size["B"], size["C"], size["H"], size["W"]), probe=probe
    )
    assert config.sizes["N"] == size["N"]
    assert config.sizes["S"] == size["S"]
    symbols = {"X_patch": "X_patch", "I": "I", "I⁰": "I0", "X_txt⁰": "X_txt0", "X⁰": "X0", "X̃": "Xtilde", "Q": "Q", "K": "K",
               "V": "V", "S": "scores", "A": "A", "H": "H", "O": "O", "X′": "Xprime", "X̂": "Xhat", "U": "U", "G": "G",
               "M_mlp": "M_mlp", "X¹": "X_l", "X_f,txt": "X_f_txt", "Z": "Z_tied" if tied else "Z_untied"}  # fmt: skip
    names, seen = Notation(model, probe.values).names, set()
    for name, value in probe.values.items():
        if (symbol := names[name].symbol) in symbols:
            squeezed = value.squeeze(1) if value.ndim == 4 else value
            assert list(squeezed.shape) == shape[symbols[symbol]], name
            seen.add(symbol)
    assert seen == set(symbols)


@pytest.mark.parametrize("mask, name", [("causal", "causal"), ("prefix", "bidirectional_vision")])
def test_its_masks_are_those_of_the_notation(golden, mask, name):
    entry = golden["001-masks"]
    model = tiny(image_size=(4, 10), mask=mask, delimiters="none", context=entry["inputs"]["T"])
    count = entry["inputs"]["N"] + entry["inputs"]["T"]
    index = torch.arange(count)
    allowed = model.mask(index[:, None], index)
    expected = torch.tensor([[float(cell) for cell in row] for row in entry["expected"][name]])
    assert torch.equal(allowed, expected == 0)
    probe = Probe("blocks.0.attn.pattern")
    with torch.no_grad():  # even scores: each token attends equally to all it may
        model.blocks[0].attn.qkv.weight.zero_()
        model(tokens(1, 3), pictures(1, 3, 4, 10), probe=probe)
    even = {"causal": "uniform_attention_causal", "prefix": "uniform_attention_bidirectional"}[mask]
    for head in probe.values["blocks.0.attn.pattern"][0]:
        torch.testing.assert_close(head, torch.tensor(entry["expected"][even]), atol=1e-6, rtol=0)


def test_begun_by_a_token_every_word_is_predicted_even_the_first(golden):
    """Read from the text alone and shifted by one, the first word would have no loss; with a token before it, it has."""
    entry = golden["001-head-supervision"]
    words, begin = [5, 7, 11], 2
    model = tiny(image_size=(4, 10), delimiters="none", type_embeddings=False, tie_embeddings=False)
    shifted = model(torch.tensor([words]), pictures(1, 3, 4, 10))[:, :-1]
    assert shifted.shape[1] == len(entry["expected"]["targets_predicted_text_index_1based"]) == 2
    read, target = torch.tensor([[begin, *words]]), torch.tensor([[*words, begin]])
    logits = model(read, pictures(1, 3, 4, 10))
    losses = F.cross_entropy(logits[0], target[0], reduction="none")
    assert len(losses) == len(words) + 1
    assert next_token(logits, target).item() == pytest.approx(losses.mean().item())
    # the first word's loss has that word as its target at the token before it, and trains how the picture is read
    gradient, patches = torch.autograd.grad(losses[0], (logits, model.patches.proj.weight))
    assert (gradient[0, 0] < 0).nonzero().tolist() == [[words[0]]]
    assert not gradient[0, 1:].any()
    assert patches.any()


def test_the_begin_token_and_the_picture_reach_the_model_through_text():
    from pencil.data.tokenizers.tokenizer import CharTokenizer
    from pencil.inference.text_stream import complete

    tokenizer, picture = CharTokenizer("abcdefghijklmnopqrstuvwxyz ,."), pictures(2)
    model = tiny(vocab=tokenizer.vocab, context=17)
    begun = complete(model, tokenizer, ["", "ab"], 9, Sampling(0), begin=3, given={"picture": picture})
    for i, prompt in enumerate(("", "ab")):
        ids = [3, *tokenizer.encode(prompt).tolist()]
        (row,), _ = grow(model, [ids], 9, Sampling(0), given={"picture": picture[i : i + 1]})
        assert begun[i] == tokenizer.decode(row[len(ids) :])


@pytest.mark.parametrize("delimiters", ["both", "none", "begin", "end"])
def test_attention_maps_are_the_recorded_pattern(delimiters):
    model, ids, picture, probe = tiny(delimiters=delimiters), tokens(2, 7), pictures(2), Probe()
    model(ids, picture, probe=probe)
    maps = attention_maps(model, picture, ids)
    assert maps.shape == (2, 7, 3, 2)
    patterns = [probe.values[f"blocks.{i}.attn.pattern"].detach() for i in range(2)]
    for word in range(7):
        for row in range(3):
            for column in range(2):
                at = (model.config.before + word, (delimiters in ("begin", "both")) + row * 2 + column)
                expected = sum(pattern[:, :, at[0], at[1]].sum(1) for pattern in patterns) / 6
                torch.testing.assert_close(maps[:, word, row, column], expected)
    assert (maps.sum((2, 3)) <= 1 + 1e-6).all()


SEVEN = [scheme for scheme in SCHEMES if scheme != "sinusoidal-halves"]
SMALL = dict(image_size=(4, 6), channels=1, patch=(2, 3), vocab=13, context=7, width=12, depth=1, hidden=5)
BIASED = ["alibi", "shaw", "t5"]
# in the short form each scheme is once that of the text and once that of the picture
PAIRS = [
    (a, b) if (j - i) % len(SEVEN) == 3 else pytest.param(a, b, marks=pytest.mark.long)
    for i, a in enumerate(SEVEN)
    for j, b in enumerate(SEVEN)
]


@pytest.mark.proof("cached = uncached under random chunking and mixed lengths", "captioner")
@pytest.mark.parametrize("positions, image_positions", PAIRS)
def test_every_pair_of_schemes_gives_the_same_cached_as_whole(positions, image_positions):
    """In chunks, one by one, and in a batch of which one row is shorter and padded before."""
    model = tiny(**SMALL, positions=positions, image_positions=image_positions).double()
    ids, picture, cache = tokens(2, 7, vocab=13), pictures(2, 1, 4, 6).double(), model.new_cache(2)
    ragged = model.new_cache(2)
    index, shifted = torch.tensor([[0, 1, 2, 3], [NOWHERE, NOWHERE, 0, 1]]), ids.clone()
    shifted[1] = ids[1].roll(2)
    with torch.no_grad():
        whole, short = model(ids, picture), model(ids[1:, :5], picture[1:])
        pieces = [model(ids[:, a:b], None if a else picture, cache=cache) for a, b in ((0, 3), (3, 4), (4, 5), (5, 7))]
        torch.testing.assert_close(torch.cat(pieces, 1), whole, atol=1e-9, rtol=1e-9)
        begun = model(shifted[:, :4], picture, Span.at(index), ragged)
        rest = [begun, *(model(shifted[:, at : at + 1], cache=ragged) for at in (4, 5, 6))]
        together = torch.cat(rest, 1)
        torch.testing.assert_close(together[0], whole[0], atol=1e-9, rtol=1e-9)
        torch.testing.assert_close(together[1, 2:], short[0], atol=1e-9, rtol=1e-9)


def test_only_the_picture_has_buckets_for_keys_ahead():
    model, probe = tiny(**{**SMALL, "context": 23}, positions="t5"), Probe("*.bucket")
    model(tokens(1, 23, vocab=13), pictures(1, 1, 4, 6), probe=probe)
    first, before = 1, model.config.before
    words = probe.values["positions.bucket"][0, before:, before:, 0]
    assert words[22, 10:].tolist() == list(range(12, -1, -1))
    assert words[0].tolist() == [0] * 23
    patches = probe.values["image_positions.bucket"][0, first : first + 4, first : first + 4]
    assert patches[0].tolist() == [[0, 0], [0, 17], [17, 0], [17, 17]]
    assert patches[3].tolist() == [[1, 1], [1, 0], [0, 1], [0, 0]]


def inside(model, ids, picture, name):
    probe = Probe("blocks.0.attn.*")
    with torch.no_grad():
        model(ids, picture, probe=probe)
    return probe.values[f"blocks.0.attn.{name}"]


@pytest.mark.parametrize("delimiters", ["both", "none"])
@pytest.mark.parametrize("image_positions", SEVEN)
@pytest.mark.parametrize("positions", BIASED)
def test_a_bias_acts_only_within_its_part(positions, image_positions, delimiters):
    """Text and picture by hand; between them, and for the delimiters, q·k and nothing more."""
    _within(tiny(**SMALL, positions=positions, image_positions=image_positions, delimiters=delimiters))


@pytest.mark.parametrize("image_positions", BIASED)
@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rope", "none"])
def test_a_pictures_bias_acts_only_within_the_picture(positions, image_positions):
    _within(tiny(**SMALL, positions=positions, image_positions=image_positions))


def _within(model):
    c, ids, picture = model.double().config, tokens(1, 5, vocab=13), pictures(1, 1, 4, 6).double()
    q, k, scores = (inside(model, ids, picture, name)[0] for name in ("q", "k", "scores"))
    first, tables, met = int(c.delimiters in ("begin", "both")), model.state_dict(), set()
    patches = {first + row * 2 + column: (row, column) for row in range(2) for column in range(2)}
    words = {c.before + position: (position,) for position in range(5)}
    scale = 1.0 if c.positions == "t5" else 1 / math.sqrt(c.head_width)
    for i in range(c.before + 5):
        for j in range(c.before + 5):
            if not (j <= i or j < c.before):
                assert (scores[:, i, j] == -torch.inf).all()
                continue
            expected = [float(q[h, i] @ k[h, j]) * scale for h in range(3)]
            parts = ((patches, c.image_scheme, "image_positions", True), (words, c.positions, "positions", False))
            for part, scheme, name, both in parts:
                if i in part and j in part:
                    more = added(scheme, tables.get(f"{name}.table"), 3, both, part[i], part[j], q[:, i])
                    expected = [a + b for a, b in zip(expected, more, strict=True)]
                    met.update({name} if any(more) else ())
            assert scores[:, i, j].tolist() == pytest.approx(expected, abs=1e-9), (i, j)
    assert met == {n for n, s in (("positions", c.positions), ("image_positions", c.image_scheme)) if s in BIASED}


@pytest.mark.parametrize("image_positions", ["learned", "shaw", "t5"])
@pytest.mark.parametrize("positions", ["learned", "shaw", "t5"])
def test_what_a_part_learns_of_its_places_is_no_matter_to_the_other(positions, image_positions):
    model = tiny(**SMALL, positions=positions, image_positions=image_positions)
    ids, picture, before = tokens(2, 7, vocab=13), pictures(2, 1, 4, 6), model.config.before
    scores = inside(model, ids, picture, "scores")
    for scheme, own, other in (
        (model.image_positions, slice(0, before), slice(before, None)),
        (model.positions, slice(before, None), slice(0, before)),
    ):
        kept = scheme.table.detach().clone()
        scheme.table.data.add_(torch.randn_like(kept))
        changed = inside(model, ids, picture, "scores")
        assert torch.equal(changed[:, :, other, other], scores[:, :, other, other])
        assert not torch.equal(changed[:, :, own, own], scores[:, :, own, own])
        if not isinstance(scheme, Learned):  # an embedding is in the queries and keys, a bias only among its own
            assert torch.equal(changed[:, :, own, other], scores[:, :, own, other])
            assert torch.equal(changed[:, :, other, own], scores[:, :, other, own])
        scheme.table.data.copy_(kept)


@pytest.mark.parametrize("scheme", ["learned", "alibi", "shaw", "t5", "none"])
def test_an_odd_width_is_no_matter_to_schemes_that_pair_nothing(scheme):
    model = tiny(**{**SMALL, "width": 21}, positions=scheme)
    assert model(tokens(2, 7, vocab=13), pictures(2, 1, 4, 6)).shape == (2, 7, 13)


def test_more_words_than_positions_are_refused():
    with pytest.raises(ValueError, match="8 tokens and the model's table of positions has 7"):
        tiny(**SMALL, positions="learned")(tokens(1, 8, vocab=13), pictures(1, 1, 4, 6))
