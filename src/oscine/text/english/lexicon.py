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
    "VRAM": "vee ram", "SAAS": "sass", "ASCII": "askee", "YAML": "yammel", "HELLO": "hello", "ISIS": "Isis",
}  # fmt: skip
# Spelled although they look like words, since they are frequent acronyms.
SPELLED = frozenset(
    words_of(
        """AI API ATM BBC CEO CFO CIA CTO CPU DIY DJ DNA DVD EST ETA FAQ FAX FBI FYI GPS GPU HIV HR IBM IP IQ IRS ISO
    IT LA LED LLC LLM MBA MIT MRI NBA NFL NYC PC PDF PHD PIN PR PST QA RSVP SEO SMS SOS SQL SUV UFO URL USA USB
    UTC VIP VPN WHO XML HTML HTTP HTTPS JSON CSS UI UX OS IOS AWS ASP BMW CD DC ER EV FM GDP HDMI ICU IPO KFC
    MVP NGO NPR OCD OMG LOL PHP PTA RIP ROI SAT TBD TSA VAT VR AR AC GMT CET EDT PDT ISBN
    IMHO AFAIK UCLA YMCA ACLU NAACP USDA USPS USC UCSD UCSB EULA SSRI ECMO ADHD AOL ESL ICE INS ION CEST CDT MDT AKA
    EPA FEC ETF IRA LTE OLED UEA TEDX IKE OAS UAE UAW UAV EIN EOD ISP ISA IDE ORM SDK APU ETC"""
    )
) - {"PIN", "IT", "WHO", "ION", "IKE", "ICE"}  # fmt: skip

# Spoken only so, whatever stands around them.
EXACT = {
    "WWI": "World War one", "WWII": "World War two", "WW1": "World War one", "WW2": "World War two",
    "C#": "see sharp", "F#": "eff sharp", ".NET": "dot net", "PhD": "pea aitch dee", "iOS": "eye oh ess",
    "macOS": "mac oh ess", "AT&T": "ay tea and tea", "50/50": "fifty fifty", "9/11": "nine eleven",
    "w/o": "without", "w/": "with", "YoY": "year over year", "TL;DR": "tea ell dee are", "WWIII": "World War three",
    "24/7/365": "twenty-four seven three sixty-five", "pH": "pea aitch", "y/o": "year old", "SaaS": "sass",
    "PaaS": "pass", "n/a": "not applicable", "N/A": "not applicable", "b/c": "because", "c/o": "care of",
}  # fmt: skip
# Lower-case words that are not said as they are written, with and without a full stop.
SHORTHANDS = {
    "vs": "versus", "btw": "by the way", "pls": "please", "plz": "please", "thx": "thanks", "ppl": "people",
    "mtg": "meeting", "tmrw": "tomorrow", "qty": "quantity", "acct": "account", "appt": "appointment", "txt": "text",
    "km": "kilometers", "kg": "kilograms", "cm": "centimeters", "mm": "millimeters", "lbs": "pounds", "hrs": "hours",
    "mph": "miles per hour", "tbsp": "tablespoon", "tsp": "teaspoon", "hwy": "highway", "dept": "department",
    "govt": "government", "mgmt": "management", "dr": "doctor", "mr": "mister", "mrs": "missus", "jr": "junior",
    "sr": "senior", "blvd": "boulevard", "msg": "message", "yrs": "years", "wks": "weeks", "yr": "year",
    "bc": "because", "nth": "enth", "ctrl": "control", "ml": "milliliters",
}  # fmt: skip
INTERJECTIONS = frozenset(words_of("hm hmm hmmm mm mmm sh shh shhh psst pfft brr brrr grr grrr zzz tsk th"))
# Capitalized words that need no full stop.
UNDOTTED = {
    "Mr": "Mister", "Mrs": "Missus", "Ms": "Miz", "Dr": "Doctor", "Prof": "Professor", "St": "Saint", "Mt": "Mount",
    "Jr": "Junior", "Sr": "Senior", "Ave": "Avenue", "Blvd": "Boulevard", "Rd": "Road", "Hwy": "Highway",
    "Ctrl": "Control", "Cmd": "Command", "Esc": "Escape", "Sgt": "Sergeant", "Lt": "Lieutenant", "Pkwy": "Parkway",
    "Inc": "Incorporated", "Ltd": "Limited", "Corp": "Corporation", "Apt": "Apartment", "Dept": "Department",
    "Tues": "Tuesday", "Thurs": "Thursday", "Thu": "Thursday", "Thur": "Thursday", "Fri": "Friday", "Ste": "Suite",
    "Wed": "Wednesday", "Tue": "Tuesday", "Mon": "Monday", "Sat": "Saturday", "Sun": "Sunday",
}  # fmt: skip
WORDS_TOO = frozenset(words_of("Sat Sun Mon Ste"))  # days and suites only before a number or a month
KEYS = {
    "ctrl": "control", "cmd": "command", "alt": "alt", "shift": "shift", "esc": "escape", "del": "delete",
    "ins": "insert", "fn": "function", "option": "option", "win": "Windows", "meta": "meta", "tab": "tab",
    "super": "super",
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
# After these and before a noun, units are singular: "a 5 km run".
DETERMINERS = ARTICLES | frozenset(words_of("a this that each every another any one's whose"))
# After these five digits are a postal code: "IL 62704".
STATES = frozenset(
    words_of(
        """AL AK AZ AR CA CO CT DE FL GA HI ID IL IN IA KS KY LA ME MD MA MI MN MS MO MT NE NV NH NJ NM NY NC ND OH OK
    OR PA RI SC SD TN TX UT VT VA WA WV WI WY DC"""
    )
)
# After these a number with a letter is a code: "exit 12A".
BEFORE_CODE = frozenset(
    words_of(
        """exit apt apartment unit room rm seat gate row suite ste flat building bldg flight platform terminal section
    form class block model type grade level lot bay door zone route highway appendix figure table item question part
    building: seat: gate: room: apt. rm. ste. no. bldg. fl. floor bus line train locker aisle section: exhibit"""
    )
)
BEFORE_DATE = frozenset(words_of("on by until till since due dated date: through")) | {
    f"{day}{mark}"
    for day in (*DAYS, *words_of("tues thur thurs monday tuesday wednesday thursday friday saturday sunday"))
    for mark in ("", ",", ".")
}
ROYAL = frozenset(words_of("King Queen Pope Emperor Tsar Czar Kaiser Prince Princess Duke Saint Empress"))
# Words that begin sentences, and hardly any name.
STARTERS = frozenset(
    words_of(
        """The A An I He She It We They You This That These Those There Here In On At By For From With To As If When
    While After Before But And Or So Yet Then Now However Also Please My Your His Her Our Their Its What Who Where Why
    How Is Are Was Were Do Does Did Can Could Will Would Should Not No Yes Let Don't I'm I'll I've It's He's She's
    We're They're You're That's There's Let's Because Since Although Though Until Once Some Many Most All Both Each
    Every Another Other Such Thanks Thank Maybe Perhaps Meanwhile Today Tomorrow Yesterday Still Just Even Only Next
    First Second Finally Later Again Call Meet Bring Come See Nobody Everyone Everybody Someone Nothing Everything"""
    )
)
FUNCTION_WORDS = frozenset(
    words_of(
        """a an the of in on at by for from with to as if when while after before but and or so yet then now also is
    are was were be been do does did can could will would should may might must has have had not no it he she we they
    you i this that these those there here more less than per each apiece off out up down over under into onto about
    around between because since until which who whom whose what where why how my your his her our their its either
    neither nor plus minus times away ago later earlier long wide tall high deep old left right today tomorrow now
    yesterday again too only even still just already back together total extra went goes go comes came gets got seems
    looks costs makes made means says said wins won lost isn't wasn't aren't"""
    )
)
TIMEZONES = frozenset(words_of("EST EDT PST PDT CST CDT MST MDT GMT UTC CET CEST BST IST JST ET PT CT MT"))
# After a slash: "5 GB/day".
PER = {
    "s": "second", "sec": "second", "min": "minute", "h": "hour", "hr": "hour", "hour": "hour", "day": "day",
    "d": "day", "week": "week", "wk": "week", "month": "month", "mo": "month", "year": "year", "yr": "year",
    "person": "person", "night": "night", "kg": "kilogram", "lb": "pound", "gal": "gallon", "l": "liter",
    "L": "liter", "km": "kilometer", "m": "meter", "kWh": "kilowatt hour", "unit": "unit", "piece": "piece",
    "mol": "mole", "capita": "capita", "player": "player", "user": "user", "seat": "seat", "item": "item",
}  # fmt: skip

TITLES = {
    "mr": "Mister", "mrs": "Missus", "ms": "Miz", "dr": "Doctor", "prof": "Professor", "rev": "Reverend",
    "gen": "General", "col": "Colonel", "capt": "Captain", "lt": "Lieutenant", "sgt": "Sergeant", "gov": "Governor",
    "sen": "Senator", "rep": "Representative", "hon": "Honorable", "pres": "President", "st": "Saint",
    "mt": "Mount", "ft": "Fort",
}  # fmt: skip
# If no name follows.
AFTER_NAME = {
    "dr": "Drive",
    "st": "Street",
    "mt": "Mount",
    "ft": "feet",
    "ct": "Court",
    "pl": "Place",
}  # if no name follows
ABBREVIATIONS = {
    "jr": "Junior", "sr": "Senior", "vs": "versus", "etc": "et cetera", "approx": "approximately",
    "inc": "Incorporated",
    "ltd": "Limited", "co": "Company", "corp": "Corporation", "ave": "Avenue", "blvd": "Boulevard", "rd": "Road",
    "apt": "apartment", "dept": "department", "est": "estimated", "lg": "large", "pkg": "package",
    "e.g": "for example", "i.e": "that is",
    "a.m": "ay em", "p.m": "pea em", "u.s": "you ess", "u.k": "you kay", "u.s.a": "you ess ay",
    "ph.d": "pea aitch dee",
    "a.k.a": "also known as", "w/o": "without", "w/": "with", "d.c": "dee see", "u.n": "you en", "n.b": "note",
    "min": "minutes", "max": "maximum", "tel": "telephone", "jan": "January", "feb": "February", "mar": "March",
    "apr": "April", "aug": "August", "sept": "September", "sep": "September", "oct": "October", "nov": "November",
    "dec": "December", "mon": "Monday", "tue": "Tuesday", "tues": "Tuesday", "wed": "Wednesday", "thu": "Thursday",
    "thurs": "Thursday", "fri": "Friday", "al": "al", "cf": "compare", "viz": "namely", "ca": "about",
    "incl": "including", "excl": "excluding", "hwy": "Highway", "pkwy": "Parkway", "ln": "Lane", "esq": "Esquire",
    "thur": "Thursday", "ct": "Court", "pl": "Place", "sq": "Square", "bldg": "building",
    "govt": "government", "assn": "Association", "bros": "Brothers", "misc": "miscellaneous", "temp": "temperature",
    "intl": "international", "mfg": "manufacturing", "univ": "University", "inst": "Institute", "tbsp": "tablespoon",
    "tsp": "teaspoon", "avg": "average", "hr": "hour", "hrs": "hours", "mins": "minutes", "secs": "seconds",
    "lb": "pound", "lbs": "pounds", "oz": "ounces", "yr": "year", "yrs": "years", "b.c": "bee see",
    "a.d": "ay dee", "op": "op", "p.s": "pea ess", "r.i.p": "are eye pea", "p.o": "pea oh",
}  # fmt: skip
# Only before a number.
BEFORE_NUMBER = {
    "no": "number", "nos": "numbers", "fig": "figure", "figs": "figures", "p": "page", "pp": "pages", "ch": "chapter",
    "vol": "volume", "sec": "section", "eq": "equation", "v": "version", "ver": "version", "ext": "extension",
    "ex": "example", "est": "established", "c": "circa", "eqs": "equations",
    "para": "paragraph", "paras": "paragraphs", "col": "column",
    "cols": "columns", "pt": "part", "pts": "parts", "rt": "Route", "rte": "Route", "ste": "Suite", "rm": "room",
    "fl": "floor", "bk": "book", "chap": "chapter", "art": "article", "tab": "table", "app": "appendix",
    "vols": "volumes", "secs": "sections", "ln": "line", "exs": "examples", "arts": "articles",
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
        ("tbsp Tbsp", "tablespoon", "tablespoons"), ("tsp Tsp", "teaspoon", "teaspoons"), ("gal", "gallon", "gallons"),
        ("qt", "quart", "quarts"), ("\u00a2", "cent", "cents"),
        ("kcal", "kilocalorie", "kilocalories"), ("mAh", "milliamp hour", "milliamp hours"), ("A", "amp", "amps"),
        ("fps", "frame per second", "frames per second"), ("Gbps Gb/s", "gigabit per second", "gigabits per second"),
        ("kbps", "kilobit per second", "kilobits per second"), ("mpg", "mile per gallon", "miles per gallon"),
        ("bpm", "beat per minute", "beats per minute"), ("rpm", "revolution per minute", "revolutions per minute"),
        ("dpi", "dot per inch", "dots per inch"), ("ppm", "part per million", "parts per million"),
        ("psi", "pound per square inch", "pounds per square inch"), ("MW", "megawatt", "megawatts"),
        ("GW", "gigawatt", "gigawatts"), ("MWh", "megawatt hour", "megawatt hours"), ("Wh", "watt hour", "watt hours"),
        ("mA", "milliamp", "milliamps"), ("mV", "millivolt", "millivolts"), ("kV", "kilovolt", "kilovolts"),
        ("Pa", "pascal", "pascals"), ("kPa", "kilopascal", "kilopascals"), ("hPa", "hectopascal", "hectopascals"),
        ("nm", "nanometer", "nanometers"), ("\u00b5m \u03bcm", "micrometer", "micrometers"),
        ("\u00b5g \u03bcg mcg", "microgram", "micrograms"), ("\u00b5s \u03bcs", "microsecond", "microseconds"),
        ("ns", "nanosecond", "nanoseconds"), ("MP", "megapixel", "megapixels"), ("PB", "petabyte", "petabytes"),
        ("GiB", "gibibyte", "gibibytes"), ("MiB", "mebibyte", "mebibytes"), ("mol", "mole", "moles"),
        ("J", "joule", "joules"), ("kJ", "kilojoule", "kilojoules"), ("N", "newton", "newtons"),
        ("dL dl", "deciliter", "deciliters"), ("cl", "centiliter", "centiliters"), ("hp", "horsepower", "horsepower"),
        ("bps", "basis point", "basis points"), ("pts", "point", "points"), ("c.", "cup", "cups"),
        ("mmHg", "millimeters of mercury", "millimeters of mercury"),
        ("yr yrs", "year", "years"), ("wk wks", "week", "weeks"), ("y/o yo", "year old", "years old"),
        ("\u2030", "per thousand", "per thousand"), ("\u03a9 \u2126", "ohm", "ohms"), ("lm", "lumen", "lumens"),
        ("cc", "cubic centimeter", "cubic centimeters"), ("Mb", "megabit", "megabits"), ("Gb", "gigabit", "gigabits"),
    )
    for name in names.split()
}  # fmt: skip
UNITS |= {
    f"{sq} {name}": (f"square {UNITS[name][0]}", f"square {UNITS[name][1]}")
    for sq in ("sq", "sq.")
    for name in words_of("ft mi km m yd")
}
LENGTHS = frozenset(words_of("km m cm mm mi ft yd nm in"))
# Written with a full stop even where no sentence ends.
DOTTED_UNITS = frozenset(words_of("tbsp tsp oz lb lbs ft min mins hr hrs sec secs yr yrs wk wks mo gal qt mi yd in"))
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
    "CNY": ("yuan", "yuan", "", ""), "KRW": ("won", "won", "", ""), "K\u010d": ("koruna", "korunas", "", ""),
    "CZK": ("koruna", "korunas", "", ""), "z\u0142": ("zloty", "zlotys", "", ""), "PLN": ("zloty", "zlotys", "", ""),
    "kr": ("krone", "kroner", "", ""), "SEK": ("krona", "kronor", "", ""), "NOK": ("krone", "kroner", "", ""),
    "DKK": ("krone", "kroner", "", ""), "MXN": ("peso", "pesos", "", ""), "BRL": ("real", "reais", "", ""),
    "NZD": ("New Zealand dollar", "New Zealand dollars", "cent", "cents"), "RUB": ("ruble", "rubles", "", ""),
    "SGD": ("Singapore dollar", "Singapore dollars", "cent", "cents"), "\u20ba": ("lira", "lira", "", ""),
    "\u20ab": ("dong", "dong", "", ""), "\u20aa": ("shekel", "shekels", "", ""), "\u20b1": ("peso", "pesos", "", ""),
    "\u20b4": ("hryvnia", "hryvnias", "", ""), "\u20a6": ("naira", "naira", "", ""), "\u0e3f": ("baht", "baht", "", ""),
    "\u20bf": ("bitcoin", "bitcoins", "", ""), "BTC": ("bitcoin", "bitcoins", "", ""),
}  # fmt: skip
SYMBOLS = {
    "&": "and", "+": "plus", "@": "at", "#": "number", "%": "percent", "=": "equals", "×": "times", "÷": "divided by",
    "<": "less than", ">": "greater than", "≈": "about", "≤": "at most", "≥": "at least",
    "≠": "is not", "²": "squared", "³": "cubed", "±": "plus or minus",
    "©": "copyright", "§": "section", "¶": "paragraph", "/": "slash", "\\": "backslash",
    "^": "caret",
    "|": ",", "~": "about", "*": "times", "°": "degrees", "√": "square root of", "∞": "infinity", "π": "pie",
    "$": "dollars", "€": "euros", "£": "pounds", "¥": "yen", "_": "underscore", "№": "number", "¢": "cents",
    "·": ",", "∑": "sum", "∫": "integral", "∂": "partial", "∏": "product", "∆": "delta", "∈": "in", "∉": "not in",
    "∪": "union", "∩": "intersection", "∧": "and", "∨": "or", "¬": "not", "∀": "for all", "∃": "there exists",
    "∴": "therefore", "∵": "because", "‰": "per thousand", "≡": "is identical to", "∝": "is proportional to",
    "⊂": "is a subset of", "⊆": "is a subset of", "∅": "empty set", "µ": "micro", "Ω": "ohms", "∇": "nabla",
    "≅": "is congruent to", "∼": "about", "⇒": "implies", "⇔": "if and only if", "º": "degrees", "¦": ",",
    "¤": "currency", "′": "prime", "⌘": "command", "⌥": "option",
    "℃": "degrees Celsius", "℉": "degrees Fahrenheit", "₹": "rupees",
}  # fmt: skip
SILENT = frozenset("'\"`¡¿ª®™†‡‗‾")  # signs without a reading
# Several signs that are one, and what is no sign between words.
OPERATORS = {
    "==": "equals", "===": "equals", "!=": "is not", "!==": "is not", "<=": "at most", ">=": "at least", "&&": "and",
    "||": "or", "+=": "plus equals", "-=": "minus equals", "++": "plus plus", "::": ",", "//": "slash slash",
    "<<": "less than less than", ">>": "greater than greater than", "**": "to the power of", "...": ",",
}  # fmt: skip
FRACTIONS = {
    "½": "one half", "¼": "one quarter", "¾": "three quarters", "⅓": "one third", "⅔": "two thirds",
    "⅛": "one eighth", "⅜": "three eighths", "⅝": "five eighths", "⅞": "seven eighths",
}  # fmt: skip
# Symbols of two letters in formulas such as "NaCl".
ELEMENTS = frozenset(
    words_of("H C N O P S K I F B Na Cl Ca Mg Fe Cu Zn Ag Au Pb Hg Si Al Br He Li Ne Ar Mn Ni Co Cr Sn Ti Ba U W V")
)
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
