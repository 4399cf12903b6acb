"""A terminal's screen with all that has scrolled off it: as much of one as the program needs."""

import re

_PART = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|([\r\n])|([^\x1b\r\n])")


def seen(told, columns):
    """The lines that a terminal of so many columns shows in the end, trailing blanks apart."""
    lines, row, column = [[]], 0, 0
    for numbers, code, control, sign in _PART.findall(told):
        if control == "\r":
            column = 0
        elif control == "\n":
            row += 1
        elif sign:
            if column == columns:
                row, column = row + 1, 0
            _put(lines, row, column, sign)
            column += 1
        elif code == "A":
            row = max(0, row - int(numbers or 1))
        elif code == "K":
            assert numbers == "2", f"erasing by {numbers}K is not known here"
            _put(lines, row, 0, "")
            lines[row] = []
        else:
            assert code in "mhl", f"the code {code} is not known here"
    texts = ["".join(line).rstrip() for line in lines]
    while texts and not texts[-1]:
        texts.pop()
    return texts


def _put(lines, row, column, sign):
    lines += [[] for _ in range(row + 1 - len(lines))]
    lines[row] += [" "] * (column + 1 - len(lines[row]))
    lines[row][column] = sign
