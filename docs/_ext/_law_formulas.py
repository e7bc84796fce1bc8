# SPDX-License-Identifier: BSD-3-Clause
"""The formulas of the laws in LaTeX, by the ``formula`` of a law.

``quad`` begins a part on its own line. If a law's formula changes, the build stops until it is typeset again.
"""

from __future__ import annotations

TYPESET = {
    "1 / sqrt(head_dim)": r"\frac{1}{\sqrt d}",
    "1": r"1",
    "value": r"\mathtt{value}",
    "values[head] / sqrt(head_dim)": r"\frac{\mathtt{values}_{\mathtt{head}}}{\sqrt d}",
    "1 / head_dim": r"\frac{1}{d}",
    "1 / ((layer + 1) * sqrt(head_dim))": r"\frac{1}{(\mathtt{layer} + 1) \sqrt d}",
    "1 / sqrt(terms * head_dim)": r"\frac{1}{\sqrt{\mathtt{terms} \cdot d}}",
    "sqrt(hidden / rank) / sqrt(head_dim)": (
        r"\sqrt{\frac{\mathtt{hidden}}{\mathtt{rank}}} \cdot \frac{1}{\sqrt d}"
    ),
    "ln(max(n, floor)) / ln(base) / sqrt(head_dim)": (
        r"\frac{\ln \max(n, \mathtt{floor})}{\ln \mathtt{base}} \cdot \frac{1}{\sqrt d}"
    ),
    "max(1, ln(n) / ln(train_length)) / sqrt(head_dim)": (
        r"\max\Bigl(1, \frac{\ln n}{\ln L}\Bigr) \cdot \frac{1}{\sqrt d} "
        r"\quad L = \mathtt{train\_length}"
    ),
    "ln(n) / sqrt(head_dim)": r"\frac{\ln n}{\sqrt d}",
    "kappa * ln(n) / head_dim": r"\frac{\kappa \ln n}{d}",
    "(ln(n) / ln(train_length) if n > train_length else 1) / sqrt(head_dim)": (
        r"\frac{\ln n}{\ln L} \cdot \frac{1}{\sqrt d} \text{ if } n > L, \text{ else } \frac{1}{\sqrt d} "
        r"\quad L = \mathtt{train\_length}"
    ),
    "(log2(n) / log2(length) if n > length else 1) / sqrt(head_dim)": (
        r"\frac{\log_2 n}{\log_2 L} \cdot \frac{1}{\sqrt d} \text{ if } n > L, \text{ else }"
        r" \frac{1}{\sqrt d} "
        r"\quad L = \mathtt{length}"
    ),
    "(s * ln(max(n, floor)) + b) / sqrt(head_dim)": r"\frac{s \ln \max(n, \mathtt{floor}) + b}{\sqrt d}",
    "(delta + beta * ln(n)**gamma) / sqrt(head_dim)": r"\frac{\delta + \beta (\ln n)^\gamma}{\sqrt d}",
    "(1 + a * ln(1 + floor(n / F))) / sqrt(head_dim)": (
        r"\frac{1 + a \ln (1 + \lfloor n/F \rfloor)}{\sqrt d} "
        r"\quad F = \mathtt{floor}"
    ),
    "(1 + beta * ln(1 + floor(n / length))) / sqrt(head_dim)": (
        r"\frac{1 + \beta \ln (1 + \lfloor n/L \rfloor)}{\sqrt d} "
        r"\quad L = \mathtt{length}"
    ),
    "(1 + n / length) ** exponent / sqrt(head_dim)": (
        r"\Bigl(1 + \frac{n}{\mathtt{length}}\Bigr)^{\mathtt{exponent}} \cdot \frac{1}{\sqrt d}"
    ),
    "(1 + alpha * ln(max(1, n / floor))) / sqrt(head_dim), or / head_dim": (
        r"\frac{1 + \alpha \ln \max(1, n/\mathtt{floor})}{\sqrt d} "
        r"\quad \text{or over } d"
    ),
    "(1 + strength * ln(n)) / sqrt(head_dim)": r"\frac{1 + \mathtt{strength} \cdot \ln n}{\sqrt d}",
    "(ln(n) / ln(base))**power / sqrt(head_dim)": (
        r"\Bigl(\frac{\ln n}{\ln \mathtt{base}}\Bigr)^{\mathtt{power}} \cdot \frac{1}{\sqrt d}"
    ),
    "(1 + slope * ln(max(1, n / train_length))) / sqrt(head_dim)": (
        r"\frac{1 + \mathtt{slope} \cdot \ln \max(1, n/L)}{\sqrt d} "
        r"\quad L = \mathtt{train\_length}"
    ),
    "m^2 / sqrt(head_dim); m = attention_factor if given, else g(factor, mscale) / g(factor,"
    " mscale_all_dim) if both are, else g(factor, 1); g(s, a) = 0.1 a ln(s) + 1, 1 for s <= 1": (
        r"\frac{m^2}{\sqrt d} "
        r"\quad m = \mathtt{attention\_factor} \text{ if given} "
        r"\quad \text{else } g(\mathtt{factor}, \mathtt{mscale})"
        r" / g(\mathtt{factor}, \mathtt{mscale\_all\_dim})"
        r"\quad \phantom{\text{else }} \text{if both are given} "
        r"\quad \text{else } g(\mathtt{factor}, 1) "
        r"\quad g(s, a) = 0.1\, a \ln \max(1, s) + 1"
    ),
    "(0.1 * mscale_all_dim * ln(max(1, factor)) + 1)^2 / sqrt(head_dim)": (
        r"\frac{(0.1 \cdot \mathtt{mscale\_all\_dim} \cdot \ln \max(1, \mathtt{factor}) + 1)^2}{\sqrt d}"
    ),
    "(1 + ln(max(1, factor)) / ln(train_length)) / sqrt(head_dim)": (
        r"\Bigl(1 + \frac{\ln \max(1, \mathtt{factor})}{\ln \mathtt{train\_length}}\Bigr) \cdot"
        r" \frac{1}{\sqrt d}"
    ),
    "sqrt((1 - n^(-2/d)) / (1 - train_length^(-2/d))) / sqrt(d), d = head_dim": (
        r"\sqrt{\frac{1 - n^{-2/d}}{1 - L^{-2/d}}} \cdot \frac{1}{\sqrt d} "
        r"\quad L = \mathtt{train\_length}"
    ),
    "max(least, sqrt(max(0, 1 + 2 ln(n / n0) / variance))) / sqrt(head_dim)": (
        r"\max\Bigl(\mathtt{least}, \sqrt{\max\bigl(0, 1 + \tfrac{2 \ln"
        r" (n/n_0)}{\mathtt{variance}}\bigr)}\Bigr) \cdot \frac{1}{\sqrt d}"
    ),
    "max(least, beta) / sqrt(head_dim); beta(n) solves E[H(n, beta)] = E[H(n0, 1)]": (
        r"\frac{\max(\mathtt{least}, \beta)}{\sqrt d} "
        r"\quad \mathbb E[H(n, \beta)] = \mathbb E[H(n_0, 1)]"
    ),
    "max(least, isf(keys / n) / isf(keys / n0)) / sqrt(head_dim); isf(p) = -Phi^-1(p)": (
        r"\max\Bigl(\mathtt{least},"
        r" \frac{\Phi^{-1}(\mathtt{keys}/n)}{\Phi^{-1}(\mathtt{keys}/n_0)}\Bigr) \cdot \frac{1}{\sqrt d}"
    ),
    "max(least, sqrt(max(0, 1 + ln(n / n0)))) / sqrt(head_dim)": (
        r"\max\Bigl(\mathtt{least}, \sqrt{\max(0, 1 + \ln (n/n_0))}\Bigr) \cdot \frac{1}{\sqrt d}"
    ),
    "max(least, gap - sqrt(max(0, gap^2 - 2 ln(n w / (1 - w))))) / sqrt(head_dim), w = weight": (
        r"\max\Bigl(\mathtt{least}, \mathtt{gap} - \sqrt{\max\bigl(0, \mathtt{gap}^2 - 2 \ln \tfrac{n"
        r" w}{1 - w}\bigr)}\Bigr) \cdot \frac{1}{\sqrt d} "
        r"\quad w = \mathtt{weight}"
    ),
    "sqrt(1 + 2 ln(1 + n / tau)) / sqrt(head_dim), and -2 ln(1 + n / tau) is added": (
        r"\frac{\sqrt{1 + 2 \ln (1 + n/\tau)}}{\sqrt d} "
        r"\quad -2 \ln (1 + n/\tau) \text{ is added}"
    ),
    "max(1, P(n)) / sqrt(head_dim) if n > 0.5, else 1 / sqrt(head_dim); P(n) = -0.037 n^4 + 0.481"
    " n^3 - 2.3 n^2 + 4.917 n - 1.791": (
        r"\frac{\max(1, P(n))}{\sqrt d} \text{ if } n > 0.5, \text{ else } \frac{1}{\sqrt d} "
        r"\quad P(n) = -0.037\, n^4 + 0.481\, n^3 "
        r"\quad \phantom{P(n)} - 2.3\, n^2 + 4.917\, n - 1.791"
    ),
    "n / sqrt(head_dim)": r"\frac{n}{\sqrt d}",
    "gamma / max(n, least) / sqrt(head_dim)": (
        r"\frac{\gamma}{\max(n, \mathtt{least})} \cdot \frac{1}{\sqrt d}"
    ),
    "log2(train_length^2 - train_length) / head_dim": (
        r"\frac{\log_2 (L^2 - L)}{d} "
        r"\quad L = \mathtt{train\_length}"
    ),
    "exp(min(theta, ln(most))) / head_dim": r"\frac{\exp(\min(\theta, \ln \mathtt{most}))}{d}",
    "ln(head_dim) * ln(n) / head_dim": r"\frac{\ln d \cdot \ln n}{d}",
}


def typeset(law):
    """The formula of a law between dollars, one line for each of its parts; ``d`` is head_dim."""
    if law.formula not in TYPESET:
        raise KeyError(f"docs/_ext/_law_formulas.py does not typeset {law.formula!r} of the law {law.name!r}")
    return "<br>".join(f"${part.strip()}$" for part in TYPESET[law.formula].split(r"\quad"))
