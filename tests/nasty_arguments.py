"""Arguments and values that shells, quoting and tools have torn: every one must arrive byte for byte."""

TEXT = [
    *("", " ", "  edge  ", "a b", "it's", 'x"y', "(x)", "<x>", "#c", "$HOME", "`id`", "$(id)", "a;b", "a&b"),
    *("a|b", "a>b", "*", "*.py", "~", "{x,y}", "a\nb", "a\tb", "a\\b", "a\\nb", "'q'", '{"a":1}', "%h", "%n"),
    *("%u", "%s", "%", "%%", "%%n", "a%nb", "-", "--", "-n", "-N", "--help", "--d", "!", "!!", "a!b", "\\"),
    *("\\n", "'", '"', "''", '""', "'\"'\"'", "=", "a=b", "A=b", "?", "[a]", ":", "::", "@", "^", "\n", "\r"),
    *("\x01", "\x1b[0m", "\x7f", "é", "日本", "🚀", "\u2028", "XXRETCODE:1", "x" * 5000),
]
NASTY = [*TEXT, "\udcff\udcfe"]
"""With bytes that are not UTF-8, as Python decodes them."""
