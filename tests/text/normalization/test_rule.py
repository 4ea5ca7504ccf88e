import re
from pathlib import Path

import pytest

from oscine.errors import RequestError
from oscine.text.normalization.language import CODES
from oscine.text.normalization.rule import NormalizationRule, check_language
from oscine.text.scanner import TextScanner


def said(text: str, language: str) -> str:
    scanner = TextScanner([NormalizationRule(language)])
    return "".join(piece.said for piece in (*scanner.push(text), *scanner.finish()))


ENGLISH = {
    "It costs $5.50.": "It costs five dollars fifty.",
    "A loss of -$3": "A loss of minus three dollars",
    "$5 million and 12 EUR": "five million dollars and twelve euros",
    "on 11/16/2026 or 2026-11-16": "on November sixteenth, twenty twenty-six or November sixteenth, twenty twenty-six",
    "on November 16, 2026, at 9:05": "on November sixteenth, twenty twenty-six, at nine oh five",
    "the 3rd of May 1984": "the third of May nineteen eighty-four",
    "at 10:30 pm, 9:00 am and 9:00": "at ten thirty pm, nine am and nine o'clock",
    "3.5 kg, 21km": "three point five kilograms, twenty-one kilometers",
    "-5 °C, 50%": "minus five degrees Celsius, fifty percent",
    "1 h and 2 h": "one hour and two hours",
    "1,234 apples in 1984": "one thousand two hundred thirty-four apples in nineteen eighty-four",
    "pages 3-5, the 21st": "pages three to five, the twenty-first",
    "agent 007": "agent zero zero seven",
    "H200, mp3, 1.2.3, 192.168.0.1, 555-0100, 4K, 3D": "H200, mp3, 1.2.3, 192.168.0.1, 555-0100, 4K, 3D",
    "No. 5, item (3), v2.": "No. five, item (three), v2.",
    "1234567890123456": "one two three four five six seven eight nine zero one two three four five six",
    "May 5 is fine; you may 5 times.": "May fifth is fine; you may five times.",
    "COVID-19, a 10-year plan, 3 A levels": "COVID-nineteen, a ten-year plan, three A levels",
    "the 1990s, the 80s, the 2000s, 5s": "the nineteen nineties, the eighties, the two thousands, five seconds",
    "call +49 170 1234567 or (555) 123-4567": "call +49 170 1234567 or (555) 123-4567",
    "99/99/2026 and 25:99": "99/99/2026 and 25:99",
}  # fmt: skip
OTHERS = {
    "german": {
        "Am 16. November 2026": "Am sechzehnten November zweitausendsechsundzwanzig",
        "um 14:30 Uhr oder 8.05 Uhr": "um vierzehn Uhr dreißig oder acht Uhr fünf",
        "der 3. Platz im 2. Stock": "der dritte Platz im zweiten Stock",
        "Es sind 3. Das reicht.": "Es sind drei. Das reicht.",
        "Der 1. Mai 1984": "Der erste Mai neunzehnhundertvierundachtzig",
        "5,50 €, 1.234 km, 50 %": "fünf Euro fünfzig, eintausendzweihundertvierunddreißig Kilometer, fünfzig Prozent",
        "1 Apfel in 1 h": "ein Apfel in eine Stunde",
        "16.11.2026": "sechzehnter November zweitausendsechsundzwanzig",
    },
    "french": {
        "Le 1er mai 2026 à 14:30": "Le premier mai deux mille vingt-six à quatorze heures trente",
        "5,50 € et 1 234 km": "cinq euros cinquante et mille deux cent trente-quatre kilomètres",
        "3 000 000 € et 1 000 000 km": "trois millions d'euros et un million de kilomètres",
        "à 14h30": "à quatorze heures trente",
        "la 2e fois, 21 h, 80 %": "la deuxième fois, vingt-et-une heures, quatre-vingts pour cent",
    },
    "spanish": {
        "el 16 de noviembre de 2026": "el dieciséis de noviembre de dos mil veintiséis",
        "21 libras, 21 años, 5,50 €": "veintiuna libras, veintiún años, cinco euros con cincuenta",
        "1º, 2ª, 50 %": "primero, segunda, cincuenta por ciento",
    },
    "portuguese": {
        "16 de novembro de 2026": "dezesseis de novembro de dois mil e vinte e seis",
        "R$ 5,50 e 2 h": "cinco reais e cinquenta e duas horas",
        "2 pessoas": "duas pessoas",
    },
    "italian": {
        "il 16 novembre 2026 alle 14:30": "il sedici novembre duemilaventisei alle quattordici e trenta",
        "5,50 €, 1 h, 50%": "cinque euro e cinquanta, una ora, cinquanta percento",
    },
    "russian": {
        "16 ноября 2026 года": "шестнадцатого ноября две тысячи двадцать шестого года",
        "в 1984 году": "в тысяча девятьсот восемьдесят четвертом году",
        "5 ₽, 2 км, 21 кг, 50 %": "пять рублей, два километра, двадцать один килограмм, пятьдесят процентов",
    },
    "chinese": {
        "2026年11月16日": "二零二六年十一月十六日",
        "下午3:30，¥5.50，50%": "下午三点三十分，五点五零元，百分之五十",
        "2个，2公里，-5℃，1,234元": "两个，两公里，负五摄氏度，一千二百三十四元",
    },
    "japanese": {
        "2026年11月16日の14:30に": "二千二十六年十一月十六日の十四時三十分に",
        "5.5kg、50%、1,234円": "五点五キログラム、五十パーセント、千二百三十四円",
    },
    "korean": {
        "2026년 11월 16일 3시 30분에": "이천이십육년 십일월 십육일 세 시 삼십분에",
        "사과 3개, 50%, $5": "사과 세 개, 오십 퍼센트, 오 달러",
    },
}
CASES = [("english", *case) for case in ENGLISH.items()]
_TABLE = (Path(__file__).parents[3] / "docs/guides/text.md").read_text(encoding="utf-8")
DOCUMENTED = re.findall(r"^\| ([A-Z]\w+) \| `(.+)` \| (.+) \|$", _TABLE, re.MULTILINE)
CASES += [(language, *case) for language, cases in OTHERS.items() for case in cases.items()]


@pytest.mark.parametrize(("language", "text", "spoken"), CASES)
def test_numbers_are_said_in_words(language: str, text: str, spoken: str) -> None:
    assert said(text, language) == spoken


@pytest.mark.parametrize(("language", "text", "spoken"), DOCUMENTED)
def test_the_guide_tells_what_is_said(language: str, text: str, spoken: str) -> None:
    assert len(DOCUMENTED) == len(CODES)
    assert said(text, language) == spoken


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("Es kostet 3 Euro.", "Es kostet drei Euro."),
        ("Cela coûte 3 euros.", "Cela coûte trois euros."),
        ("Cuesta 3 euros y el libro 5.", "Cuesta tres euros y el libro cinco."),
        ("Não são 3, são 5.", "Não são três, são cinco."),
        ("Sono 3 gatti e non 5.", "Sono tre gatti e non cinque."),
        ("Это 3 кота.", "Это три кота."),
        ("有3只猫。", "有三只猫。"),
        ("猫が3匹います。", "猫が三匹います。"),
        ("고양이 3마리", "고양이 세 마리"),
        ("3", "three"),
        ("Hallo! Der Preis ist 3 und 5.", "Hallo! Der Preis ist drei und fünf."),
    ],
)
def test_an_unknown_language_is_guessed_from_the_text(text: str, spoken: str) -> None:
    assert said(text, "auto") == spoken


def test_a_language_without_rules_is_refused_with_those_that_have_some() -> None:
    with pytest.raises(RequestError, match=r"no rules for the language 'klingon' \(it has: chinese, english"):
        check_language("klingon")
