"""What serves an adapter: everything of the runtime contract that an author never sees.

`run` drives one turn, `buffer` keeps what is not acknowledged, `runtime` fences one binding's turns, `registry` holds the
bindings' runtimes; the servicers translate.
"""
