"""`rk debug bundle`: one file for the report of a fault, from whatever still answers.

command.py   the command: asks everything at once until a deadline, and writes the file
sources.py   what is asked: health, admin ports, four-letter words, RPC, history, logs, configuration
hiding.py    what is taken out of every text: secrets, and keys if wanted
"""
