"""Numbers with a unit or a currency, in words. Names and plurals are those of Unicode CLDR (the library Babel)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from oscine.text.normalization.speller import Gender, Speller, import_babel

# As written -> CLDR's name.
UNITS = {
    "km": "length-kilometer", "m": "length-meter", "cm": "length-centimeter", "mm": "length-millimeter",
    "mi": "length-mile", "ft": "length-foot", "kg": "mass-kilogram", "g": "mass-gram", "mg": "mass-milligram",
    "t": "mass-tonne", "lb": "mass-pound", "lbs": "mass-pound", "oz": "mass-ounce", "l": "volume-liter",
    "L": "volume-liter", "ml": "volume-milliliter", "mL": "volume-milliliter", "°C": "temperature-celsius",
    "℃": "temperature-celsius", "°F": "temperature-fahrenheit", "℉": "temperature-fahrenheit",
    "%": "concentr-percent", "％": "concentr-percent", "km/h": "speed-kilometer-per-hour",
    "m/s": "speed-meter-per-second", "mph": "speed-mile-per-hour", "h": "duration-hour", "min": "duration-minute",
    "s": "duration-second", "ms": "duration-millisecond", "kB": "digital-kilobyte", "KB": "digital-kilobyte",
    "MB": "digital-megabyte", "GB": "digital-gigabyte", "TB": "digital-terabyte", "m²": "area-square-meter",
    "m2": "area-square-meter", "km²": "area-square-kilometer", "km2": "area-square-kilometer", "ha": "area-hectare",
    "m³": "volume-cubic-meter", "m3": "volume-cubic-meter", "W": "power-watt", "kW": "power-kilowatt",
    "kWh": "energy-kilowatt-hour", "V": "electric-volt", "Hz": "frequency-hertz",
    "kHz": "frequency-kilohertz", "MHz": "frequency-megahertz", "GHz": "frequency-gigahertz",
    "км": "length-kilometer", "м": "length-meter", "см": "length-centimeter", "мм": "length-millimeter",
    "кг": "mass-kilogram", "г": "mass-gram", "л": "volume-liter", "км/ч": "speed-kilometer-per-hour",
}  # fmt: skip
# Patterns that Babel's data has no form of.
_PATTERNS = {
    "zh": {
        "length-kilometer": "{0}公里", "length-meter": "{0}米", "length-centimeter": "{0}厘米",
        "length-millimeter": "{0}毫米", "length-mile": "{0}英里", "length-foot": "{0}英尺", "volume-liter": "{0}升",
        "volume-milliliter": "{0}毫升", "concentr-percent": "百分之{0}", "duration-hour": "{0}小时",
        "duration-minute": "{0}分钟", "duration-millisecond": "{0}毫秒", "area-square-meter": "{0}平方米",
        "area-square-kilometer": "{0}平方公里", "area-hectare": "{0}公顷", "volume-cubic-meter": "{0}立方米",
        "power-kilowatt": "{0}千瓦", "energy-kilowatt-hour": "{0}千瓦时",
    },
    "ja": {"duration-hour": "{0}時間", "duration-minute": "{0}分", "duration-second": "{0}秒"},
    "ko": {
        "duration-hour": "{0} 시간", "duration-minute": "{0} 분", "duration-second": "{0} 초",
        "concentr-percent": "{0} 퍼센트",
    },
}  # fmt: skip
_FEMININE = {
    "de": "length-mile mass-tonne mass-ounce duration-hour duration-minute duration-second duration-millisecond "
    "energy-kilowatt-hour speed-mile-per-hour INR",
    "fr": "mass-tonne mass-pound mass-ounce duration-hour duration-minute duration-second duration-millisecond GBP INR",
    "es": "length-mile mass-tonne mass-pound mass-ounce duration-hour area-hectare speed-mile-per-hour GBP INR",
    "it": "mass-tonne mass-pound mass-ounce duration-hour GBP INR",
    "pt": "length-mile mass-tonne mass-pound mass-ounce duration-hour speed-mile-per-hour GBP INR",
    "ru": "length-mile mass-tonne mass-ounce duration-minute duration-second duration-millisecond speed-mile-per-hour "
    "JPY KRW INR",
}

SYMBOLS = {
    "$": "USD", "US$": "USD", "€": "EUR", "£": "GBP", "¥": "JPY", "￥": "JPY", "CN¥": "CNY", "₩": "KRW", "₽": "RUB",
    "₹": "INR", "R$": "BRL",
}  # fmt: skip
CURRENCIES = ("USD", "EUR", "GBP", "JPY", "CNY", "KRW", "RUB", "INR", "BRL", "CHF", "CAD", "AUD")
# After a symbol the country is not said: "five dollars", not "five US dollars".
_COUNTRY = {
    "en": r"\b(US|British|Japanese|Chinese|South Korean|Russian|Indian|Brazilian) ",
    "de": r"\bUS-|\b(Britische[sr]?|Japanischer?|Chinesischer?|Renminbi|Südkoreanischer?|Russischer?|Indische) ",
    "fr": r" (des États-Unis|sterling|japonais|renminbi chinois|sud-coréens?|russes?|indiennes?|brésiliens?)$",
    "es": r" (estadounidenses?|esterlinas?|japonés|japoneses|renminbi|surcoreanos?|rusos?|indias?|brasileños?)$",
    "pt": r" (americanos?|esterlinas?|japonês|japoneses|chinês|chineses|sul-coreanos?|russos?|indianas?|brasileiros?)$",
    "it": r" (statunitens[ei]|britannic(a|he)|giappones[ei]|cines[ei]|sudcorean.|russ[oi]|indian[ae]|brasilian[oi])$",
    "ru": r" США$| стерлингов$|^(британск|японск|китайск|южнокорейск|российск|индийск|бразильск)\w+ ",
    "ja": r"^(米|英国|中国人民|韓国|ロシア |インド |ブラジル )(?=.)",
    "ko": r"^(미국|영국|일본|중국|대한민국|러시아|인도|브라질) ",
    "zh": r"^(俄罗斯|印度|巴西)",
}
_YUAN = {"zh": "元", "ja": "元"}  # of ¥ in Chinese, and of CNY: not "人民币"
_CENTS = {"en": " ", "de": " ", "fr": " ", "ru": " ", "es": " con ", "it": " e ", "pt": " e "}
# "Un million de kilomètres": a round million is a noun.
_MILLIONS = {
    "fr": (re.compile(r"(?:million|milliard)s?$"), " de"),
    "es": (re.compile(r"mill(?:ón|ones)$"), " de"),
    "pt": (re.compile(r"(?:milh|bilh)(?:ão|ões)$"), " de"),
    "it": (re.compile(r"(?:milion[ei]|miliard[oi])$"), " di"),
}
_FORMAT = "0.##########"
_DIGITS = "\0"  # stands for the digits in a pattern


@dataclass(frozen=True, slots=True)
class Number:
    """A number as it was written: its digits without marks between groups."""

    whole: str
    fraction: str = ""
    negative: bool = False
    grouped: bool = False  # "1,234", not "1234"

    @property
    def value(self) -> Decimal:
        """The value without its sign. "1.0" is not "1": its noun is in the plural."""
        return Decimal(f"{self.whole}.{self.fraction}" if self.fraction else self.whole)

    @property
    def is_like_a_year(self) -> bool:
        return len(self.whole) == 4 and not (self.fraction or self.negative or self.grouped)


class QuantitySpeller:
    def __init__(self, spell: Speller) -> None:
        self._spell, self._code = spell, spell.code
        self._units, self._numbers = import_babel("units"), import_babel("numbers")
        self._plural_form = import_babel("core").Locale.parse(spell.code).plural_form
        # Babel takes 0.2 ms to format a quantity, so its results are kept by unit and by plural form.
        self._unit_patterns: dict[tuple[str, str], str] = {}
        self._names: dict[tuple[str, str, bool], str] = {}

    def with_unit(self, number: Number, unit: str) -> str:
        words = self._words(number, unit)
        pattern = _PATTERNS.get(self._code, {}).get(unit)
        if pattern is not None:
            return pattern.format(words)
        text = self._unit_pattern(number.value, unit).replace(_DIGITS, words, 1)
        code = self._code
        if code == "fr":
            return _elided(text)
        return text.replace(" ", "") if code == "ja" else _spaced(text, words) if code == "ko" else text

    def _unit_pattern(self, value: Decimal, unit: str) -> str:
        key = unit, self._plural(value)
        if key not in self._unit_patterns:
            text: str = self._units.format_unit(value, unit, "long", _FORMAT, locale=self._code)
            digits: str = self._numbers.format_decimal(value, _FORMAT, locale=self._code)
            self._unit_patterns[key] = text.replace("\xa0", " ").replace(digits, _DIGITS, 1)
        return self._unit_patterns[key]

    def _plural(self, value: Decimal) -> str:
        try:
            return str(self._plural_form(value))
        except (OverflowError, ValueError):
            return "other"

    def with_currency(self, number: Number, currency: str, *, symbol: bool, magnitude: str = "") -> str:
        """`symbol`: it was written as one. `magnitude`: a word such as "million" between both."""
        name = self._currency_name(number, currency, symbol=symbol, magnitude=magnitude)
        joint = "" if self._code in ("zh", "ja") else " "
        if magnitude:
            return f"{self._words(number, currency)} {magnitude}{joint}{name}"
        cents = _CENTS.get(self._code)
        if cents and len(number.fraction) == 2:
            whole = Number(number.whole, negative=number.negative)
            words = f"{self._words(whole, currency)} {self._currency_name(whole, currency, symbol=symbol)}"
            return words if number.fraction == "00" else f"{words}{cents}{self._spell.cardinal(int(number.fraction))}"
        text = f"{self._words(number, currency)}{joint}{name}"
        return _elided(text) if self._code == "fr" else text

    def _currency_name(self, number: Number, currency: str, *, symbol: bool, magnitude: str = "") -> str:
        if currency == "JPY" and symbol and self._code == "zh":
            currency = "CNY"
        if currency == "CNY" and self._code in _YUAN:
            return _YUAN[self._code]
        value = Decimal(1_000_000) if magnitude else number.value
        key = currency, self._plural(value), symbol
        if key not in self._names:
            name: str = self._numbers.get_currency_name(currency, value, self._code)
            name = name.lower() if self._code == "pt" else name
            self._names[key] = re.sub(_COUNTRY[self._code], "", name) if symbol else name
        return self._names[key]

    def _words(self, number: Number, noun: str) -> str:
        gender: Gender = "feminine" if noun in _FEMININE.get(self._code, "").split() else "masculine"
        if self._code == "zh" and number.whole == "2" and not number.fraction and noun != "concentr-percent":
            return "负两" if number.negative else "两"
        words = self._spell.number(number.whole, number.fraction, negative=number.negative, gender=gender)
        ending, of = _MILLIONS.get(self._code, (None, ""))
        return words + of if ending and ending.search(words) else words


def _elided(text: str) -> str:
    return re.sub(r"\bde (?=[aeiouéè])", "d'", text)


def _spaced(text: str, words: str) -> str:
    """Puts a space between the number and its unit."""
    return re.sub(rf"({re.escape(words)})(?=\S)", r"\1 ", text, count=1)
