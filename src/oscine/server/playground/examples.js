// Something to say, in the languages that the model speaks.

const EXAMPLES = {
  english: "Good morning. The kettle is on, the rain has stopped, and a blackbird has been singing since half past four.",
  chinese: "早上好。水已经烧开了，雨也停了，窗外的鸟从四点半一直唱到现在。",
  german: "Guten Morgen. Der Regen hat aufgehört, und im Garten singt seit halb fünf eine Amsel.",
  french: "Bonjour. La pluie s’est arrêtée, et un merle chante dans le jardin depuis quatre heures et demie.",
  spanish: "Buenos días. Ha dejado de llover, y un mirlo canta en el jardín desde las cuatro y media.",
  japanese: "おはようございます。雨は上がり、庭ではつぐみが四時半から歌っています。",
};
const NAMES = {
  english: ["English", "en"],
  chinese: ["中文", "zh"],
  german: ["Deutsch", "de"],
  french: ["Français", "fr"],
  spanish: ["Español", "es"],
  japanese: ["日本語", "ja"],
};

export function offerExamples(languages, use) {
  const chips = Object.keys(EXAMPLES)
    .filter((language) => languages.includes(language))
    .map((language) => {
      const chip = document.createElement("button");
      const [name, code] = NAMES[language];
      chip.type = "button";
      chip.className = "chip";
      chip.textContent = name;
      chip.lang = code;
      chip.addEventListener("click", () => use(EXAMPLES[language]));
      return chip;
    });
  document.getElementById("examples").replaceChildren(...chips);
}
