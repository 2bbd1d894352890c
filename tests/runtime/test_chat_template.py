"""Chat templates: what real ones need works, and hostile ones are stopped by a clear error."""

from __future__ import annotations

import datetime as dt
import itertools

import pytest

from selfdraft.errors import ConfigError
from selfdraft.runtime.chat_template import (
    ChatTemplate,
    Message,
    SpecialTexts,
    TemplateLimits,
)

USER: list[Message] = [{"role": "user", "content": "hi"}]
TALK: list[Message] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nyo"},
    {"role": "user", "content": "bye"},
]

CHATML = """\
{%- if messages[0]['role'] == 'system' -%}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set rest = messages %}
{%- endif %}
{%- set ns = namespace(last=messages|length - 1) %}
{%- for message in rest %}
    {%- set text = message.content %}
    {%- if message.role == 'assistant' and '</think>' in text %}
        {%- set text = text.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' ~ message.role ~ '\\n' ~ text ~ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""


def render(source: str, **args: object) -> str:
    return ChatTemplate(source).render(USER, args=args)


def refusal(source: str, **args: object) -> str:
    with pytest.raises(ConfigError) as caught:
        render(source, **args)
    assert caught.value.hint and "\n" not in caught.value.problem
    return caught.value.problem


def test_chatml_with_system_prompt_and_stripped_thoughts() -> None:
    assert ChatTemplate(CHATML).render(TALK) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
        "<|im_start|>assistant\nyo<|im_end|>\n<|im_start|>user\nbye<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_template_arguments_reach_the_template() -> None:
    assert render(CHATML, enable_thinking=False).endswith("<think>\n\n</think>\n\n")
    assert not render(CHATML, enable_thinking=True).endswith("</think>\n\n")


def test_generation_prompt_can_be_left_out() -> None:
    text = ChatTemplate(CHATML).render(USER, add_generation_prompt=False)
    assert text == "<|im_start|>user\nhi<|im_end|>\n"


def test_special_tokens_are_variables() -> None:
    special = SpecialTexts(bos_token="<s>", eos_token="</s>", others={"pad_token": "<p>"})
    template = ChatTemplate("{{ bos_token }}{{ eos_token }}{{ pad_token }}", special=special)
    assert template.render(USER) == "<s></s><p>"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% for i in range(5) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "012"),
        ("{% for i in range(4) if i % 2 %}{{ loop.index }}{{ i }}{% endfor %}", "1123"),
        ("{{ {'b': 'é<', 'a': [1, none]} | tojson }}", '{"b": "é<", "a": [1, null]}'),
        ("{{ [1] | tojson(indent=2) }}", "[\n  1\n]"),
        ("{% if true %}\nx\n{% endif %}\ny", "x\ny"),
        ("{% generation %}a{{ 1 }}{% endgeneration %}b", "a1b"),
        ("{{ messages | map(attribute='role') | join(',') }}", "user"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}", "1"),
        ("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m('a') ~ m(2) }}", "<a><2>"),
        ("{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}c{% endcall %}", "<c>"),
        ("{% set x %}a{{ 1 }}{% endset %}{{ x }}", "a1"),
        ("{% set x | upper %}ab{% endset %}{{ x }}", "AB"),
        ("{{ 'a\nb\n' | indent(2) }}|", "a\n  b\n|"),
        ("{{ 'a\nb' | indent(2, true) }}", "  a\n  b"),
        ("{{ '%s-%03d' % ('a', 7) }}{{ '%.1f' | format(2.25) }}", "a-0072.2"),
        ("{{ 'abc'[::-1] }}{{ (1, 2)[0] }}{{ 'a-b'.split('-')[1] }}", "cba1b"),
        ("{% for k, v in {'x': 1}.items() %}{{ k }}{{ v }}{% endfor %}", "x1"),
        ("{{ 'x' * 3 + '!' }}{{ 2 ** 10 }}{{ 7 // 2 }}{{ 2.5 | round | int }}", "xxx!102432"),
        ("{{ missing | default('d') }}{{ missing }}{{ none }}", "dNone"),
        ("{% for i in [1, [2]] recursive %}{{ i if i is number else loop(i) }}{% endfor %}", "12"),
        ("{{ '-'.join(['a', 'b']) }}{{ 'aab'.replace('a', 'c', 1) }}", "a-bcab"),
        ("{{ [3, 1] | sort | first }}{{ ['b', 'a', 'b'] | unique | list }}", "1['b', 'a']"),
        ("{% set a, b = 1, 2 %}{{ b }}{% block t %}{{ a }}{% endblock %}", "21"),
        ("{{ ' x ' | trim }}{{ 'a' in 'abc' }}{{ 'A'.lower() | upper }}", "xTrueA"),
    ],
)
def test_what_chat_templates_use_works(source: str, text: str) -> None:
    assert render(source) == text


def test_date_comes_from_the_clock_given() -> None:
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", now=lambda: dt.datetime(2026, 1, 2))
    assert template.render(USER) == "02 Jan 2026"


def test_exception_message_of_the_template_is_shown_harmlessly() -> None:
    problem = refusal("{{ raise_exception('roles must\x1b[2J\nalternate') }}")
    assert problem == "the chat template refuses these messages: roles must␛[2J alternate"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ ''|attr('__class__') }}",
        "{{ ''['__class__']['__mro__'] }}",
        "{{ raise_exception.__globals__['os'] }}",
        "{{ strftime_now.__func__.__globals__ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ self.__init__.__globals__ }}",
        "{{ (messages|map(attribute='__class__')|list)[0].__mro__ }}",
        "{{ dict.fromkeys([1]) }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='system') }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ '{0}'.format_map({}) }}",
        "{{ lipsum.__globals__ }}",
        "{{ (1).to_bytes(10**9, 'big') }}",
        "{{ cycler }}",
        "{% include 'other' %}",
        "{% import 'other' as o %}",
        "{% extends 'other' %}",
    ],
)
def test_reaching_out_of_the_sandbox_is_refused(source: str) -> None:
    assert "the chat template cannot be used" in refusal(source)


BOMBS = [
    "{% for i in range(10**9) %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% for i in range(9999) %}{% for j in range(99999) if false %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}{{ range(99999)|list|length }}{% endfor %}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
    "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "{% block a %}{{ self.a() }}{% endblock %}",
    "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
    "{{ 1" + " + 1" * 20000 + " }}",
    "{% if 1 %}" * 300 + "{% endif %}" * 300,
    "{{ 'a' * 10**10 }}",
    "{{ 10**10 * 'a' }}",
    "{{ [1] * 10**10 }}",
    "{{ 10 ** (10 ** 9) }}",
    "{{ 'a'|center(10**9) }}",
    "{{ 'a'.center(10**9) }}",
    "{{ 'a'.zfill(10**9) }}",
    "{{ '\t'.expandtabs(10**9) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%*d' % (10**9, 1) }}",
    "{{ '%.1000000000f'|format(1) }}",
    "{{ 'a\nb'|indent(10**9) }}",
    "{{ ('a\n' * 9999)|indent('x' * 9999) }}",
    "{{ [1]|tojson(indent=10**9) }}",
    "{{ 1|round(-(10**9)) }}",
    "{{ strftime_now('%1000000000Y') }}",
    "{{ range(99999)|join('x' * 99999) }}",
    "{{ ('x' * 99999).join(range(99999)|map('string')) }}",
    "{{ ('x' * 99999).replace('x', 'y' * 99999) }}",
    "{{ ('x' * 99999)|replace('', 'y' * 99999) }}",
    (
        "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}"
        "{% endfor %}"
    ),
    (
        "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}"
        "{% endfor %}"
    ),
    (
        "{% set ns = namespace(x=1) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}"
        "{% endfor %}{{ ns.x }}"
    ),
    (
        "{% set ns = namespace(x=1) %}{% for i in range(99) %}{% set ns.x = {'a': ns.x, 'b': ns.x} %}"
        "{% endfor %}{{ ns.x|tojson }}"
    ),
    "{% set ns = namespace(x=9) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    (
        "{% set ns = namespace(x=1) %}{% for i in range(99) %}{% set ns.x = dict(a=ns.x, b=ns.x) %}"
        "{% endfor %}"
    ),
    (
        "{% set ns = namespace(a=1) %}{% for i in range(99) %}"
        "{% set ns.a = namespace(a=ns.a, b=ns.a) %}{% endfor %}{{ ns.a }}"
    ),
    "{% set x %}{% for i in range(99999) %}" + "a" * 9999 + "{% endfor %}{% endset %}",
    "{% macro m() %}" + "a" * 9999 + "{% endmacro %}{% for i in range(99999) %}{% set x = m() %}"
    "{% endfor %}",
    "{% for i in range(99999) %}{{ 'a' * 999 }}{% endfor %}",
    "x" * 200_000,
]


@pytest.mark.parametrize("source", BOMBS)
def test_time_and_memory_bombs_are_refused(source: str) -> None:
    assert "the chat template cannot be used" in refusal(source)


def test_rendering_stops_at_the_deadline() -> None:
    clock = itertools.count()
    limits = TemplateLimits(seconds=100, clock=lambda: float(next(clock)))
    template = ChatTemplate("{% for i in range(n) %}{{ i }}{% endfor %}", limits=limits)
    assert template.render(USER, args={"n": 3}) == "012"
    with pytest.raises(ConfigError, match="takes too long"):
        template.render(USER, args={"n": 1000})


def test_long_conversations_are_paid_for_by_their_own_length() -> None:
    messages = [{**m, "content": m["content"] * 20_000} for m in TALK[1:]] * 5
    text = ChatTemplate(CHATML).render(messages)  # type: ignore[arg-type]
    assert len(text) > 500_000


def test_output_has_a_size_limit_of_its_own() -> None:
    template = ChatTemplate("{{ 'a' * 50 }}", limits=TemplateLimits(output_chars=49))
    with pytest.raises(ConfigError, match="writes 50 characters"):
        template.render(USER)


def test_limits_start_anew_with_each_rendering() -> None:
    template = ChatTemplate("{{ 'a' * 60 }}", limits=TemplateLimits(base_units=500))
    assert [len(template.render(USER)) for _ in range(5)] == [60] * 5


def test_syntax_error_tells_the_line() -> None:
    assert "line 2" in refusal("ok\n{% if %}")


def test_unknown_filter_is_named() -> None:
    assert "'urlize'" in refusal("{{ 'x'|urlize }}")


@pytest.mark.parametrize("name", ["messages", "add_generation_prompt", "raise_exception"])
def test_template_argument_may_not_replace_what_selfdraft_sets(name: str) -> None:
    assert name in refusal("x", **{name: 1})
