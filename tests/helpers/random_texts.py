"""Random texts that tokenizers must agree on: letters, emoji, CJK, combining marks, control characters, odd spaces."""

import random

TRAINING = [
    "The pencil draws a strip; the strip has a seat. Isn't it? Don't, he said, it's 1,234.5 metres long!",
    "naïve café, Übergröße, señor — “quoted” text … and 日本語の文章, 中文字符, 한국어.",
    "def f(x):\n\treturn x ** 2 + [1, 2, 3][0]  # comment",
    "👍🏽 👨‍👩‍👧 🇩🇪 ☺️ thumbs up, family, flag",
    "to be or not to be, that is the question: whether 'tis nobler in the mind to suffer",
] * 30
POOLS = [
    "abcdefghij klmnopqrstuvwxyz",
    "The pencil draws. the strip, has a seat! def return isn't \t",
    "日本語中文字符の文章",
    "😀👍🏽👨‍👩‍👧🇩🇪☺️",
    "éàüñçößÜÉ",
    "e\u0301a\u0308o\u0302\u0323u\u031b",
    "\x00\x01\x07\x1b\x7f\x85\u200b\u200d\ufeff\u00a0\u2028\u00ad",
    "ﬁ①Ⅳ½㎏ﾊﾟ가각힣ＡＢ",
    "  \n\t\r\n",
    "\u0e33\u0e01\u0915\u094d\u0937",
    "<>[]{}()!?.,;:'\"-_/\\0123456789▁#",
]
WORDS = ["the ", "pencil", " strip", " the", "question", " isn't", ".", " ,", " 's", " ' "]


def random_texts(count: int, seed: int = 5) -> list[str]:
    chance = random.Random(seed)

    def one() -> str:
        if chance.random() < 0.3:
            return "".join(chance.choice(WORDS) for _ in range(chance.randrange(12)))
        return "".join(chance.choice(chance.choice(POOLS)) for _ in range(chance.randrange(40)))

    return [one() for _ in range(count)]
