// Sentences in the languages that the models speak: examples to try, and a short one for previews.

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
  const chips = known(languages).map((language) => {
    const { name, code, example } = LANGUAGES[language];
    const chip = document.createElement("button");
    chip.type = "button";
    chip.className = "chip";
    chip.textContent = name;
    chip.lang = code;
    chip.addEventListener("click", () => use(example));
    return chip;
  });
  // One language needs no choice: its example is in the box already.
  document.getElementById("examples").replaceChildren(...(chips.length > 1 ? chips : []));
}
