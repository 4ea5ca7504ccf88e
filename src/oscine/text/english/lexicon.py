"""Words of English that are not spoken as they are written: abbreviations, acronyms, units, currencies, letters."""

from __future__ import annotations


def words_of(listed: str) -> list[str]:
    return listed.split()


# As the demo voice speaks them best: it learnt words, not letters.
LETTERS = dict(
    zip(
        "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
        words_of(
            """ay bee see dee ee eff gee aitch eye jay kay ell em en oh pea cue are ess tea you vee double-you ex why
            zee"""
        ),
        strict=True,
    )
)
# Acronyms that are read as words; others of up to five letters without a vowel pattern are spelled.
SPOKEN_ACRONYMS = {
    "NASA": "Nassa", "NATO": "Nayto", "UNESCO": "Younesko", "UNICEF": "Younisef", "OPEC": "Opek", "FIFA": "Feefa",
    "COVID": "Covid", "AIDS": "Aids", "RAM": "ram", "ROM": "rom", "SIM": "sim", "PIN": "pin", "LASER": "laser",
    "RADAR": "radar", "SWAT": "swat", "ASAP": "ay sap", "JPEG": "jay peg", "GIF": "gif", "WIFI": "why fie",
    "LAN": "lan", "NAFTA": "Nafta", "ZIP": "zip", "NASDAQ": "Nazdak", "OK": "okay", "TV": "tea vee", "ID": "eye dee",
    "PM": "pea em", "AM": "ay em", "US": "you ess", "UK": "you kay", "EU": "ee you", "UN": "you en", "IT": "it",
    "VRAM": "vee ram",
}  # fmt: skip
# Of up to four letters: spelled although they look like words, since they are frequent acronyms.
SPELLED = frozenset(
    words_of(
        """AI API ATM BBC CEO CFO CIA CTO CPU DIY DJ DNA DVD EST ETA FAQ FAX FBI FYI GPS GPU HIV HR IBM IP IQ IRS ISO
    IT LA LED LLC LLM MBA MIT MRI NBA NFL NYC PC PDF PHD PIN PR PST QA RSVP SEO SMS SOS SQL SUV UFO URL USA USB
    UTC VIP VPN WHO XML HTML HTTP HTTPS JSON CSS UI UX OS IOS AWS ASP BMW CD DC ER EV FM GDP HDMI ICU IPO KFC
    MVP NGO NPR OCD OMG LOL PHP PTA RIP ROI SAT TBD TSA VAT VR AR AC GMT CET EDT PDT ISBN"""
    )
) - {"PIN", "IT", "WHO"}  # fmt: skip

# Spoken only so, whatever stands around them.
EXACT = {
    "WWI": "World War one", "WWII": "World War two", "WW1": "World War one", "WW2": "World War two",
    "C#": "see sharp", "F#": "eff sharp", ".NET": "dot net", "PhD": "pea aitch dee", "iOS": "eye oh ess",
    "macOS": "mac oh ess", "AT&T": "ay tea and tea", "50/50": "fifty fifty", "9/11": "nine eleven",
    "w/o": "without", "w/": "with", "YoY": "year over year",
}  # fmt: skip
# Words in capitals that are acronyms after an article.
ACRONYMS_AFTER_ARTICLE = frozenset(words_of("WHO IT"))
ARTICLES = frozenset(words_of("the an our my your his her its their"))
DAYS = dict(
    zip(
        words_of("mon tue wed thu fri sat sun"),
        words_of("Monday Tuesday Wednesday Thursday Friday Saturday Sunday"),
        strict=True,
    )
)
# After a slash: "5 GB/day".
PER = {
    "s": "second", "sec": "second", "min": "minute", "h": "hour", "hr": "hour", "hour": "hour", "day": "day",
    "d": "day", "week": "week", "wk": "week", "month": "month", "mo": "month", "year": "year", "yr": "year",
    "person": "person", "night": "night", "kg": "kilogram", "lb": "pound", "gal": "gallon", "l": "liter",
    "L": "liter", "km": "kilometer", "m": "meter", "kWh": "kilowatt hour", "unit": "unit", "piece": "piece",
}  # fmt: skip

TITLES = {
    "mr": "Mister", "mrs": "Missus", "ms": "Miz", "dr": "Doctor", "prof": "Professor", "rev": "Reverend",
    "gen": "General", "col": "Colonel", "capt": "Captain", "lt": "Lieutenant", "sgt": "Sergeant", "gov": "Governor",
    "sen": "Senator", "rep": "Representative", "hon": "Honorable", "st": "Saint", "mt": "Mount", "ft": "Fort",
}  # fmt: skip
AFTER_NAME = {"dr": "Drive", "st": "Street", "mt": "Mount", "ft": "feet"}  # if no name follows
ABBREVIATIONS = {
    "jr": "Junior", "sr": "Senior", "vs": "versus", "etc": "et cetera", "approx": "approximately",
    "inc": "Incorporated",
    "ltd": "Limited", "co": "Company", "corp": "Corporation", "ave": "Avenue", "blvd": "Boulevard", "rd": "Road",
    "apt": "apartment", "dept": "department", "est": "established", "e.g": "for example", "i.e": "that is",
    "a.m": "ay em", "p.m": "pea em", "u.s": "you ess", "u.k": "you kay", "u.s.a": "you ess ay",
    "ph.d": "pea aitch dee",
    "a.k.a": "also known as", "w/o": "without", "w/": "with", "d.c": "dee see", "u.n": "you en", "n.b": "note",
    "min": "minutes", "max": "maximum", "tel": "telephone", "jan": "January", "feb": "February", "mar": "March",
    "apr": "April", "aug": "August", "sept": "September", "sep": "September", "oct": "October", "nov": "November",
    "dec": "December", "mon": "Monday", "tue": "Tuesday", "tues": "Tuesday", "wed": "Wednesday", "thu": "Thursday",
    "thurs": "Thursday", "fri": "Friday", "al": "al", "cf": "compare", "viz": "namely", "ca": "about",
}  # fmt: skip
# Only before a number.
BEFORE_NUMBER = {
    "no": "number", "nos": "numbers", "fig": "figure", "figs": "figures", "p": "page", "pp": "pages", "ch": "chapter",
    "vol": "volume", "sec": "section", "eq": "equation", "v": "version", "ver": "version", "ext": "extension",
}  # fmt: skip
MONTHS = {
    name: whole
    for whole in words_of("""January February March April May June July August September October November December""")
    for name in (whole.lower(), whole[:3].lower())
} | {"sept": "September"}
PERIODS = DAYS | MONTHS
MONTH_NAMES = list(dict.fromkeys(MONTHS.values()))
MAGNITUDES = {
    "thousand": "thousand", "million": "million", "billion": "billion", "trillion": "trillion", "k": "thousand",
    "m": "million", "mn": "million", "bn": "billion", "b": "billion", "tn": "trillion",
}  # fmt: skip

# unit: (one, several)
UNITS = {
    name: (one, several)
    for names, one, several in (
        ("km", "kilometer", "kilometers"), ("m", "meter", "meters"), ("cm", "centimeter", "centimeters"),
        ("mm", "millimeter", "millimeters"), ("mi", "mile", "miles"), ("ft", "foot", "feet"), ("yd", "yard", "yards"),
        ("kg", "kilogram", "kilograms"), ("g", "gram", "grams"), ("mg", "milligram", "milligrams"),
        ("lb lbs", "pound", "pounds"), ("oz", "ounce", "ounces"), ("l L", "liter", "liters"),
        ("ml mL", "milliliter", "milliliters"), ("s sec secs", "second", "seconds"),
        ("ms", "millisecond", "milliseconds"),
        ("min mins", "minute", "minutes"), ("h hr hrs", "hour", "hours"), ("mph", "mile per hour", "miles per hour"),
        ("km/h kph kmh", "kilometer per hour", "kilometers per hour"),
        ("m/s", "meter per second", "meters per second"),
        ("KB kB", "kilobyte", "kilobytes"), ("MB", "megabyte", "megabytes"), ("GB", "gigabyte", "gigabytes"),
        ("TB", "terabyte", "terabytes"), ("Hz", "hertz", "hertz"), ("kHz", "kilohertz", "kilohertz"),
        ("MHz", "megahertz", "megahertz"), ("GHz", "gigahertz", "gigahertz"), ("W", "watt", "watts"),
        ("kW", "kilowatt", "kilowatts"), ("kWh", "kilowatt hour", "kilowatt hours"), ("V", "volt", "volts"),
        ("Mbps", "megabit per second", "megabits per second"), ("m²", "square meter", "square meters"),
        ("km²", "square kilometer", "square kilometers"), ("m³", "cubic meter", "cubic meters"),
        ("ft²", "square foot", "square feet"), ("%", "percent", "percent"),
        ("°C ℃", "degree Celsius", "degrees Celsius"),
        ("°F ℉", "degree Fahrenheit", "degrees Fahrenheit"), ("°", "degree", "degrees"),
        ("dB", "decibel", "decibels"),
        ("px", "pixel", "pixels"), ("ha", "hectare", "hectares"), ("cal", "calorie", "calories"),
        ("tbsp", "tablespoon", "tablespoons"), ("tsp", "teaspoon", "teaspoons"), ("gal", "gallon", "gallons"),
        ("qt", "quart", "quarts"), ("\u00a2", "cent", "cents"),
        ("kcal", "kilocalorie", "kilocalories"), ("mAh", "milliamp hour", "milliamp hours"), ("A", "amp", "amps"),
    )
    for name in names.split()
}  # fmt: skip
# symbol or code: (one, several, hundredth, hundredths)
_DOLLAR = ("dollar", "dollars", "cent", "cents")
CURRENCIES = {
    "$": _DOLLAR, "US$": _DOLLAR, "USD": ("US dollar", "US dollars", "cent", "cents"),
    "€": ("euro", "euros", "cent", "cents"), "EUR": ("euro", "euros", "cent", "cents"),
    "£": ("pound", "pounds", "pence", "pence"), "GBP": ("British pound", "British pounds", "pence", "pence"),
    "¥": ("yen", "yen", "", ""), "JPY": ("yen", "yen", "", ""), "₹": ("rupee", "rupees", "paisa", "paise"),
    "INR": ("rupee", "rupees", "paisa", "paise"), "₩": ("won", "won", "", ""), "₽": ("ruble", "rubles", "", ""),
    "CHF": ("Swiss franc", "Swiss francs", "", ""), "CAD": ("Canadian dollar", "Canadian dollars", "cent", "cents"),
    "AUD": ("Australian dollar", "Australian dollars", "cent", "cents"),
    "CA$": ("Canadian dollar", "Canadian dollars", "cent", "cents"),
    "A$": ("Australian dollar", "Australian dollars", "cent", "cents"),
    "NZ$": ("New Zealand dollar", "New Zealand dollars", "cent", "cents"),
    "HK$": ("Hong Kong dollar", "Hong Kong dollars", "cent", "cents"),
    "R$": ("real", "reais", "", ""),
    "CNY": ("yuan", "yuan", "", ""), "KRW": ("won", "won", "", ""),
}  # fmt: skip
SYMBOLS = {
    "&": "and", "+": "plus", "@": "at", "#": "number", "%": "percent", "=": "equals", "×": "times", "÷": "divided by",
    "<": "less than", ">": "greater than", "≈": "about", "≤": "at most", "≥": "at least",
    "≠": "is not", "²": "squared", "³": "cubed", "±": "plus or minus",
    "©": "copyright", "®": "", "™": "", "§": "section", "¶": "paragraph", "/": "slash", "\\": "backslash",
    "^": "caret",
    "|": ",", "~": "about", "*": "times", "°": "degrees", "√": "square root of", "∞": "infinity", "π": "pie",
    "$": "dollars", "€": "euros", "£": "pounds", "¥": "yen", "_": "underscore",
}  # fmt: skip
FRACTIONS = {
    "½": "one half", "¼": "one quarter", "¾": "three quarters", "⅓": "one third", "⅔": "two thirds",
    "⅛": "one eighth", "⅜": "three eighths", "⅝": "five eighths", "⅞": "seven eighths",
}  # fmt: skip
# Parts of addresses that are words; other short ones are spelled.
DOMAINS = {"com": "com", "org": "org", "net": "net", "gov": "gov", "edu": "ee dee you", "info": "info", "io": "eye oh"}
EXTENSIONS = frozenset(
    words_of(
        """pdf txt doc docx xls xlsx ppt pptx csv json xml html htm css js ts py sh md png jpg jpeg gif svg mp3 mp4 wav
    flac ogg zip tar gz exe dll yml yaml toml ini cfg log rs go c h cpp java rb php sql ipynb"""
    )
)
BEFORE_ROMAN = frozenset(
    words_of(
        """chapter part volume book act scene section king queen pope war world phase type stage level class title
    article appendix louis henry george edward charles elizabeth william john paul pius benedict richard james
    philip napoleon rocky superbowl bowl grade figure table episode season"""
    )
)
REGNAL = frozenset(
    words_of(
        "louis henry george edward charles elizabeth william john paul pius benedict richard james philip napoleon"
    )
)
# After these, "I" is a number.
BEFORE_NUMERAL_ONE = frozenset(words_of("Chapter Part Volume War Act Phase Type Class Appendix Table"))
