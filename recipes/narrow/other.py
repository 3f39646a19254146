"""Everything else that people type, with one honest answer."""

from __future__ import annotations

import random

from . import words as w
from .problems import choose, frame

ANSWER = " I only know sums, short Python functions and stories."
COUNTRIES = w.words("France Spain Italy Germany Japan China India Brazil Canada Mexico Egypt Kenya Peru Norway Sweden Poland Greece "
                    "Turkey Chile Cuba Ireland Portugal Austria Iran Nepal Ghana Mali Finland Denmark Hungary Texas Africa Europe")
WORKS = w.words("Macbeth Faust Don_Quixote the_Iliad War_and_Peace Emma Dracula Ulysses the_Odyssey Hamlet Moby_Dick the_Bible Candide")
DEEDS = w.words("painted_the_Mona_Lisa invented_the_telephone discovered_America built_the_pyramids won_the_World_Cup is_the_president "
                "wrote_this is_your_maker made_you was_the_first_man_on_the_moon is_the_king_of_England invented_paper are_you")
SUBJECTS = w.words("physics biology chemistry democracy gravity the_moon photosynthesis love music evolution the_internet football cooking "
                   "philosophy inflation computers electricity volcanoes dinosaurs climate_change art history yoga taxes poetry religion "
                   "the_brain medicine quantum_physics black_holes the_stock_market a_verb justice happiness Python the_sun war time")
LISTS = w.words("colors animals countries cities fruits rivers planets flowers songs movies books languages sports names birds oceans kings")
COUNTED = w.words("planets continents oceans countries states stars bones moons languages people players keys_on_a_piano days letters seasons "
                  "colors wonders rings strings gods teeth muscles elements islands species hours sides cards")
WHERE = w.words("in_the_world in_space in_the_solar_system in_the_human_body on_Earth in_a_year in_the_alphabet in_the_rainbow "
                "in_Europe in_the_sky on_a_team in_a_deck in_the_sea in_Greece")
CHAT = """Hello|Hi|Hey|Good morning|Good evening|Hello there|Hi there!|Hello!|Thanks|Thank you|Bye|Goodbye|Yes|No|Ok|Help|Nice to meet
 you|Good night|Welcome|Test|test|hey there|What's up?|How are you?|How do you do?|I am sad|I am hungry|I love you|You are wrong|Why?|What?|
Really?|Cool|lol|haha|Stop|Go away|Sing a song|Wow|Who are you?|What are you?|What can you do?|Are you a robot?|Are you human?|Where do you
 live?|Do you like me?|Tell me a joke|Say something|Talk to me|I am bored|Let's play a game|Good job|Sorry|Please|Hmm|Never mind|Continue"""
SCALES = "tallest longest biggest oldest smallest fastest richest deepest hottest most_famous".split()
TOPS = "mountain river city animal building planet tree bird ocean country lake person".split()
JOBS = ["a poem", "an essay", "a song", "an email", "a letter", "a speech", "a review", "a report", "a haiku", "a joke", "a recipe", "a tweet",
        "a summary", "a headline", "an SQL query", "a web page", "a Java class", "a C++ program", "a regular expression", "a shell script"]
FORMS = [
    "What is the [capital|population|flag|currency|language|president|history|area] of {country}?", "Who [wrote|is the author of] {work}?",
    "Who {deed}?", "{chat}", "{chat}", "Translate [the phrase |]'{phrase}' [to|into] {tongue}.", "How do you say {phrase} in {tongue}?",
    "What is the weather [like|like today|today|tomorrow|in Paris]?", "[Explain|Describe|Define|Summarize|Discuss] {subject}.",
    "[What is|Tell me about|What do you know about|How does one learn|Can you explain|Do you like|What do you think of] {subject}?",
    "What is your [name|age|job|favorite color|favorite food|purpose|opinion]?", "[List|Name|Give me] [three|five|ten|two|some] {list}.",
    "[Where|How big|How far away|How old] is {country}?", "When [was|did] [{subject}|{country}|the war] [start|end|begin]?",
    "Why is [the sky blue|grass green|water wet|the sea salty|ice cold|{subject} important|the sun hot|the night dark]?",
    "[Can you|Could you|Do you|Will you] [sing|dance|speak French|play chess|drive a car|book a flight|see me|think|feel pain|remember me]?",
    "Write {job} about {subject}.", "Write {job}.", "What [time|day|year|month|date] is it[ today|]?", "How do [birds|planes|fish|trees] [fly|work|grow]?",
    "Is [{country} in Europe|{subject} hard|it raining|today a holiday|{subject} fun|a tomato a fruit|the earth round]?",
    "What is the {scale} {top} [in the world|in {country}|on Earth|]?", "[Recommend|Suggest] [a movie|a book|a restaurant|a song|a hotel|a gift].",
    "How do I [cook rice|fix a bike|lose weight|learn {tongue}|find a job|make coffee|get to {country}|tie a tie|sleep better]?",
    "Tell me [a joke|the news|about {country}|about yourself|your name|a secret|a fact about {subject}|about {subject}].",
    "How many {counted} are [there|there {where}|{where}]?", "How many {counted} are there[ {where}|]?", "How many {counted} does [{country}|a cat|the sun] have?",
    "How [tall|long|old|deep|high|hot|heavy|fast|far] is [a giraffe|the sun|the moon|Mount Everest|the Nile|a whale|the sea|an elephant|{country}]?",
    "How much [does a car cost|is a house|money does a doctor make|water is in the sea|do you weigh]?", "{gibberish}", "{gibberish}",
    "[Where|When|Why|How|What|Who|Which one]?", "What is the square root of [two|pi|minus one]?", "What [color|shape] is [the sky|a banana|{country}]?",
    "What does [{word}|love|{subject}] mean?", "What is [a {word}|an {top}|the meaning of life]?", "{word}",
    "[The capital of {country} is|My favorite color is|Roses are red|To be or not to be|I think that|Dear Sir|Today I want to]",
]
PHRASES = w.words("good_morning good_night thank_you hello goodbye I_love_you please yes where_is_the_station the_cat_is_black water")
TONGUES = w.words("Spanish French German Italian Latin Japanese Chinese Russian Polish Dutch Greek Turkish Arabic")


def gibberish(rng: random.Random) -> str:
    """What a cat on the keyboard would type."""
    keys = rng.choice(["asdfghjkl", "qwertyuiop", "zxcvbnm", "abcdefghijklmnopqrstuvwxyz", "asdfjkl", "?!.,#"])
    size = rng.randint(1, 8)
    if rng.random() < 0.4:
        start = rng.randrange(len(keys))
        return (keys * 2)[start:start + size]
    text = "".join(rng.choice(keys) for _ in range(size))
    return text if rng.random() < 0.7 else text + " " + "".join(rng.choice(keys) for _ in range(rng.randint(2, 6)))


def other(rng: random.Random) -> dict:
    """A prompt from outside the narrow world."""
    pick = rng.choice
    text = choose(rng, pick(FORMS)).format(
        country=pick(COUNTRIES), work=pick(WORKS), deed=pick(DEEDS), chat=pick(CHAT.replace("\n", "").split("|")), phrase=pick(PHRASES),
        tongue=pick(TONGUES), subject=pick(SUBJECTS), list=pick(LISTS), counted=pick(COUNTED), where=pick(WHERE), job=pick(JOBS),
        scale=pick(SCALES).replace("_", " "), top=pick(TOPS), gibberish=gibberish(rng), word=pick(w.NOUNS + w.ANIMALS))
    if rng.random() < 0.08:
        text = text.lower()
    return {"task": "other", "prompt": frame(rng, text) if rng.random() < 0.4 else text, "response": ANSWER}
