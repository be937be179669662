# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The names that backends have in options, results and the state of the agent."""

IPTABLES_NFT = "iptables_nft"
IPTABLES_LEGACY = "iptables_legacy"
NFTABLES = "nftables"

#: those of the program iptables
VARIANTS = (IPTABLES_NFT, IPTABLES_LEGACY)
