# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The manual page and the completion for bash of a command line, made of its parser."""

from __future__ import annotations

import argparse
import string
import typing as t


class _Command(t.NamedTuple):
    """A command that --help lists."""

    name: str
    summary: str
    parser: argparse.ArgumentParser


def _commands(parser: argparse.ArgumentParser) -> t.List[_Command]:
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    listed = {action.dest: action.help or "" for action in commands._choices_actions}
    return [_Command(name, summary, commands.choices[name]) for name, summary in listed.items()]


def _arguments(parser: argparse.ArgumentParser) -> t.List[argparse.Action]:
    return [action for action in parser._actions if not isinstance(action, argparse._SubParsersAction)]


def manual(parser: argparse.ArgumentParser, summary: str, version: str, section: int = 8) -> str:
    """Return a manual page (man(7)).

    :param summary: of the program, in a few words.
    """
    epilog = (parser.epilog or "").split("\n\n")
    titles = {block.partition(":\n")[0]: block for block in epilog if ":\n" in block.partition("  ")[0]}
    others = [block for block in epilog if block not in titles.values()]
    lines = ['.TH "%s" %d "" "%s %s"' % (parser.prog.upper(), section, parser.prog, version), ".SH NAME"]
    lines += [r"%s \- %s" % (_escaped(parser.prog), _escaped(summary)), ".SH SYNOPSIS"]
    lines += [r"\fB%s\fR [\fIOPTION\fR...] \fICOMMAND\fR [\fIARGUMENT\fR...]" % _escaped(parser.prog)]
    lines += [".SH DESCRIPTION", *_text(parser.description or "")]
    for block in others:
        lines += [".PP", *_text(block)]
    lines += [".SH OPTIONS", *_options(parser), ".SH COMMANDS"]
    for command in _commands(parser):
        lines += [".SS %s" % _usage(command.parser)]
        lines += [*_text(command.parser.description or _sentence(command.summary)), *_options(command.parser)]
    for title, block in titles.items():
        lines += [".SH %s" % title.upper(), ".nf", *map(_escaped, block.split("\n")[1:]), ".fi"]
    return "\n".join(lines) + "\n"


def _usage(parser: argparse.ArgumentParser) -> str:
    return _escaped(" ".join(word for word in parser.format_usage().split()[2:] if word != "[-h]"))


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def _options(parser: argparse.ArgumentParser) -> t.Iterator[str]:
    for action in _arguments(parser):
        if isinstance(action, argparse._HelpAction):
            continue
        names = ", ".join(r"\fB%s\fR" % _escaped(one) for one in action.option_strings)
        value = action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
        value = "" if action.nargs == 0 else r"\fI%s\fR" % _escaped(str(value))
        words = (action.help or "") % dict(vars(action), prog=parser.prog)
        yield from (".TP", " ".join(filter(None, (names, value))), *_text(_sentence(words.rstrip("."))))


def _text(text: str) -> t.List[str]:
    return [_escaped(line.strip()) for line in text.strip().split("\n")]


def _escaped(line: str) -> str:
    """Return text as roff prints it: a point or an apostrophe in front would be a request."""
    escaped = line.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + escaped if escaped[:1] in (".", "'") else escaped


_COMPLETION = string.Template("""\
# Completion of $prog for bash.
_$name() {
    local word=$${COMP_WORDS[COMP_CWORD]} before=$${COMP_WORDS[COMP_CWORD - 1]} command="" one
    for one in "$${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
        case $$one in
        $alternatives) command=$$one; break ;;
        esac
    done
    case "$$command $$before" in
$values    esac
    case $$command in
$options    *) mapfile -t COMPREPLY < <(compgen -W "$words" -- "$$word") ;;
    esac
}
complete -o default -F _$name $prog
""")


def completion(parser: argparse.ArgumentParser) -> str:
    """Return the completion of commands, options and their values for bash; without a match it completes files."""
    commands = _commands(parser)
    values, options = "", ""
    for command in [*commands, _Command("", "", parser)]:
        words = []
        for action in _arguments(command.parser):
            words += [one for one in action.option_strings if one.startswith("--")]
            for one in action.option_strings if action.nargs != 0 else ():
                reply = _reply(map(str, action.choices)) if action.choices else "COMPREPLY=()"
                values += '    "%s %s") %s; return ;;\n' % (command.name, one, reply)
        options += "    %s) %s ;;\n" % (command.name, _reply(words)) if command.name else ""
    names = [command.name for command in commands]
    return _COMPLETION.substitute(
        prog=parser.prog,
        name=parser.prog.replace("-", "_"),
        alternatives=" | ".join(names),
        values=values,
        options=options,
        words=" ".join(names + words),
    )


def _reply(words: t.Iterable[str]) -> str:
    return 'mapfile -t COMPREPLY < <(compgen -W "%s" -- "$word")' % " ".join(words)
