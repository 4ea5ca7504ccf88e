// Examples to try: a sentence in each language, and English texts of each kind that is read in other words.

const LANGUAGES = {
  english: {
    name: "English",
    code: "en",
    example:
      "Good morning. The kettle is on, the rain has stopped, and a blackbird has been singing since half past four.",
    preview: "Hello there. This is what I sound like.",
  },
  chinese: {
    name: "中文",
    code: "zh",
    example: "早上好。水已经烧开了，雨也停了，窗外的鸟从四点半一直唱到现在。",
    preview: "你好，我的声音听起来是这样的。",
  },
  german: {
    name: "Deutsch",
    code: "de",
    example: "Guten Morgen. Der Regen hat aufgehört, und im Garten singt seit halb fünf eine Amsel.",
    preview: "Hallo. So klingt meine Stimme.",
  },
  french: {
    name: "Français",
    code: "fr",
    example: "Bonjour. La pluie s’est arrêtée, et un merle chante dans le jardin depuis quatre heures et demie.",
    preview: "Bonjour. Voici à quoi ressemble ma voix.",
  },
  spanish: {
    name: "Español",
    code: "es",
    example: "Buenos días. Ha dejado de llover, y un mirlo canta en el jardín desde las cuatro y media.",
    preview: "Hola. Así suena mi voz.",
  },
  japanese: {
    name: "日本語",
    code: "ja",
    example: "おはようございます。雨は上がり、庭ではつぐみが四時半から歌っています。",
    preview: "こんにちは。私の声はこんな感じです。",
  },
  korean: {
    name: "한국어",
    code: "ko",
    example: "안녕하세요. 비가 그쳤고, 정원에서는 새가 네 시 반부터 노래하고 있어요.",
    preview: "안녕하세요. 제 목소리는 이렇습니다.",
  },
  italian: {
    name: "Italiano",
    code: "it",
    example: "Buongiorno. Ha smesso di piovere, e un merlo canta in giardino dalle quattro e mezza.",
    preview: "Ciao. Questa è la mia voce.",
  },
  portuguese: {
    name: "Português",
    code: "pt",
    example: "Bom dia. A chuva parou, e um melro canta no jardim desde as quatro e meia.",
    preview: "Olá. A minha voz é assim.",
  },
  russian: {
    name: "Русский",
    code: "ru",
    example: "Доброе утро. Дождь кончился, и в саду с половины пятого поёт дрозд.",
    preview: "Здравствуйте. Вот так звучит мой голос.",
  },
};

const KINDS = {
  Prices: "Lunch was $12.50 for 2, i.e. £4.80 each (incl. 20% tip) – not bad!",
  Dates: "Dr. Lee is in on Mon, Nov 16, 2026, 9:30am–5pm; Henry VIII was born in 1491.",
  Units: "It’s −5 °C, the wind does 30 km/h, and we still have 2 1/2 miles to go.",
  Letters: "NASA and the FBI need code K7Q-2PX for the USB-C cable ASAP.",
  Addresses: "Mail jo.doe@example.org, see example.org/menu, or call (555) 010-0199.",
  Math: "x² + 3 ≥ 7, and 10⁶ × 2 = 2,000,000.",
  Markdown: "## Shopping 🛒\n\n- **two** lemons\n- a [good](#) loaf of bread",
  Pauses: 'One moment. <break time="800ms"/> <sub alias="World Wide Web">WWW</sub>, I said.',
};

const known = (languages) => Object.keys(LANGUAGES).filter((language) => languages.includes(language));

// The text that a new page starts with.
export function firstExample(languages) {
  return LANGUAGES[known(languages)[0]]?.example ?? "";
}

export function previewText(languages, preferred) {
  const language = languages.includes(preferred) ? preferred : known(languages)[0];
  return (LANGUAGES[language] ?? LANGUAGES.english).preview;
}

export function offerExamples(languages, use) {
  const chip = (name, code, example) => {
    const button = Object.assign(document.createElement("button"), { type: "button", className: "chip", lang: code });
    button.textContent = name;
    button.addEventListener("click", () => use(example));
    return button;
  };
  const spoken = known(languages).map((language) => LANGUAGES[language]);
  // One language needs no choice: its example is in the box already.
  const chips = spoken.length > 1 ? spoken.map(({ name, code, example }) => chip(name, code, example)) : [];
  const kinds = languages.includes("english") ? Object.entries(KINDS) : [];
  chips.push(...kinds.map(([name, example]) => chip(name, "en", example)));
  document.getElementById("examples").replaceChildren(...chips);
}
