"""Damages bytes in the ways that disks, networks and malice do."""

import random

HEADER = 64


def mutated(data: bytes, seed: int) -> bytes:
    """The same bytes with one to three faults."""
    generator = random.Random(seed)
    for _ in range(generator.randint(1, 3)):
        data = generator.choice(FAULTS)(data or b"\0", generator)
    return data


def flip_bits(data: bytes, generator: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(generator.choice([1, 1, 8, 100])):
        changed[generator.randrange(len(changed))] ^= 1 << generator.randrange(8)
    return bytes(changed)


def truncate(data: bytes, generator: random.Random) -> bytes:
    return data[: generator.randrange(len(data))]


def zero_a_page(data: bytes, generator: random.Random) -> bytes:
    size = min(generator.choice([64, 512, 4096]), len(data))
    start = generator.randrange(len(data) - size + 1)
    return data[:start] + bytes(size) + data[start + size :]


def swap_chunks(data: bytes, generator: random.Random) -> bytes:
    first, second = sorted(generator.randrange(len(data) + 1) for _ in range(2))
    return data[second:] + data[first:second] + data[:first]


def edit_header(data: bytes, generator: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(generator.randint(1, 4)):
        value = generator.choice([0, 1, 0x7F, 0x80, 0xFF, generator.randrange(256)])
        changed[generator.randrange(min(HEADER, len(changed)))] = value
    return bytes(changed)


def append(data: bytes, generator: random.Random) -> bytes:
    return data + generator.choice([data, generator.randbytes(50), b"\0" * 1000])


def random_bytes(data: bytes, generator: random.Random) -> bytes:
    return generator.randbytes(generator.choice([0, 1, 100, len(data)]))


FAULTS = [
    flip_bits,
    truncate,
    zero_a_page,
    swap_chunks,
    edit_header,
    edit_header,
    append,
    random_bytes,
]
