"""Random numbers of rows, against SplitMix64 in plain Python."""

import math

import pytest
import torch

from pencil.train.tasks.diffusion import normal, random_bits, uniform

MASK = (1 << 64) - 1


def splitmix(key, number):
    z = (key + (number + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & MASK
    return z ^ z >> 31


def test_the_bits_are_those_of_splitmix64():
    # published with the generator, for the seed 1234567
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    keys = torch.tensor([1234567, (1 << 62) - 3, 0])
    found = [[value & MASK for value in row] for row in random_bits(keys, 5).tolist()]
    assert found[0] == known
    assert found == [[splitmix(key, i) for i in range(5)] for key in keys.tolist()]
    assert torch.equal(random_bits(keys, 2, 3), random_bits(keys, 5)[:, 3:])


@pytest.mark.long
def test_compiled_bits_are_the_same():
    keys = torch.tensor([1234567, (1 << 62) - 3, 0])
    torch.compiler.reset()
    found = torch.compile(random_bits, dynamic=False)(keys, 11, 3)
    assert torch.equal(found, random_bits(keys, 11, 3))


def test_numbers_of_a_row_do_not_depend_on_the_other_rows():
    keys = torch.tensor([7, 11, 1 << 61])
    whole = normal(keys, (3, 5), 2)
    for i in range(3):
        assert torch.equal(whole[i], normal(keys[i : i + 1], (3, 5), 2)[0])
        assert torch.equal(uniform(keys)[i], uniform(keys[i : i + 1])[0])
    expected = []
    for number in range(2, 10):
        bits = splitmix(11, number)
        radius = math.sqrt(-2 * math.log(((bits >> 32) + 1) / 2**32))
        expected.append((radius, 2 * math.pi * (bits & 0xFFFFFFFF) / 2**32))
    values = [r * math.cos(a) for r, a in expected] + [r * math.sin(a) for r, a in expected]
    torch.testing.assert_close(whole[1].flatten(), torch.tensor(values[:15]), atol=1e-5, rtol=1e-4)


def test_they_are_uniform_and_normal():
    keys = torch.arange(20011)
    u, z = uniform(keys, 4).double(), normal(keys[:101], (397,)).double()
    assert 0 <= float(u.min()) < 0.001
    assert 0.999 < float(u.max()) < 1
    assert float(u.mean()) == pytest.approx(0.5, abs=0.01)
    assert float(z.mean()) == pytest.approx(0, abs=0.02)
    assert float(z.var()) == pytest.approx(1, abs=0.02)
    assert float((z**4).mean()) == pytest.approx(3, abs=0.15)
    assert float((z[:, 1:] * z[:, :-1]).mean()) == pytest.approx(0, abs=0.02)
    assert float((z[1:] * z[:-1]).mean()) == pytest.approx(0, abs=0.02)  # of neighbouring keys
