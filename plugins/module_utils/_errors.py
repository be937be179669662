# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What can go wrong, by who can repair it."""

from __future__ import annotations


class IpMasqError(Exception):
    """The base of every error that this collection raises on purpose.

    The message is written for the operator: what was found, where, and what to do about it.
    """


class ConfigError(IpMasqError):
    """The operator's input is refused. Nothing on the node was touched."""


class NodeError(IpMasqError):
    """The node cannot do what was asked, or did not. The message says in what state it was left."""


class ProgramMissingError(NodeError):
    """A program is not on the node, and nothing was touched.

    :param package: the name of a package that has it, in the distributions that are supported.
    """

    def __init__(self, message: str, package: str) -> None:
        super().__init__(message)
        self.package = package


class LockHeld(NodeError):
    """Another process held a lock for longer than we may wait; the node is as it was."""
