"""Wordings of instructions for each of the teacher's styles. "plain" also occurs without an instruction."""

from __future__ import annotations

INSTRUCTIONS = {
    "slow": (
        "Speak slowly.", "Please speak slowly.", "Slow.", "Talk slowly and calmly.", "Read this very slowly.",
        "Say it slowly, please.", "Use a slow pace.", "speak slowly", "slow speech", "Take your time.",
    ),
    "fast": (
        "Speak fast.", "Please speak quickly.", "Fast.", "Talk fast, you are in a hurry.", "Read this very quickly.",
        "Say it quickly, please.", "Use a fast pace.", "speak fast", "fast speech", "Hurry up.",
    ),
    "high": (
        "Speak with a high voice.", "Use a high pitch.", "High voice.", "Talk in a high-pitched voice.",
        "Raise your voice to a high pitch.", "Say it in a high voice, please.", "high pitch", "Sound bright and high.",
    ),
    "low": (
        "Speak with a low voice.", "Use a low pitch.", "Low voice.", "Talk in a low-pitched voice.",
        "Lower your voice.", "Say it in a deep, low voice, please.", "low pitch", "Sound dark and low.",
    ),
    "plain": (
        "Speak normally.", "Use your normal voice.", "Speak clearly.", "Read this in a neutral voice.", "Be calm.",
    ),
}  # fmt: skip
# instructions.json of the checkpoint: one of each style that changes the speech.
EXAMPLES = {style.capitalize(): wordings[0] for style, wordings in INSTRUCTIONS.items() if style != "plain"}
