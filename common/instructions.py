"""What machine instructions are for: multiply-adds, memory, coordinates and tests, everything else."""

from __future__ import annotations

# Opcodes of NVIDIA's machine code (SASS), as nvdisasm writes them, without their suffixes.
_MULTIPLY = {"FFMA", "DFMA", "DADD"}
_MEMORY = {"LDG", "LDS", "LDL", "LDC", "ULDC", "LD", "STG", "STS", "STL", "ST", "LDGSTS", "LDGDEPBAR"}
_INTEGER = {
    "IADD", "IADD3", "IMAD", "IMUL", "IABS", "IMNMX", "VIMNMX", "VIADD", "VIADDMNMX", "ISETP", "LEA", "LOP", "LOP3",
    "SHF", "SHL", "SHR", "SEL", "SGXT", "PRMT", "BMSK", "FLO", "POPC", "R2P", "P2R", "PLOP3", "UIADD3", "UIMAD",
    "UISETP", "ULEA", "ULOP3", "UPLOP3", "USEL", "USHF", "UPRMT", "UFLO", "UPOPC", "I2F", "F2I", "I2FP", "MUFU",
}  # fmt: skip

KINDS = ("multiply-adds", "memory", "integer", "other")


def by_kind(opcodes: dict[str, int]) -> dict[str, int]:
    """Instructions by what they are for, one entry per KINDS.

    Integer means coordinates, addresses, tests, and what a division is made of (conversions and a reciprocal); other,
    barriers, branches, calls and moves.
    """
    counts = dict.fromkeys(KINDS, 0)
    for opcode, count in opcodes.items():
        if opcode in _MULTIPLY:
            kind = "multiply-adds"
        elif opcode in _MEMORY:
            kind = "memory"
        elif opcode in _INTEGER:
            kind = "integer"
        else:
            kind = "other"
        counts[kind] += count
    return counts
