from importlib import import_module

from lessons import run

run(__file__, import_module(".network.commands", __package__).COMMANDS)
