#!/bin/sh
# A rank that costs next to nothing: says its process id, and waits for a line where it is given a FIFO.
echo "RANKLINE $$"
if [ -p "${1-}" ]; then
    read -r _ <"$1"
fi
