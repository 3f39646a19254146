"""Short stories about what was asked for: someone, a wish or a trouble, help, and an end.

A story is drawn together with its topic, so that the topic's hero, thing, place or wish is in it. Pronouns in the singular
always mean the hero; helpers are called by what they are.
"""

from __future__ import annotations

import random
import re

from . import words as w
from .problems import choose

CREATURES = w.words("cat dog mouse rabbit bear fox bird duck frog turtle pony owl pig lion bunny squirrel kitten puppy elephant monkey fish "
                    "dragon wolf hedgehog lamb snail bee penguin goat horse cow crow spider tiger giraffe dolphin whale butterfly ant "
                    "hamster donkey sheep robot ghost monster dinosaur snowman train star cloud boat tree car elf giant mole otter")
MEN = w.words("boy king prince wizard knight pirate farmer baker fisherman old_man brother clown")
WOMEN = w.words("girl queen princess witch fairy mermaid old_woman sister hen teacher doctor nurse")
LOOKS = w.words("little small young brave happy kind shy curious old big clever lonely funny quiet silly hungry tiny lazy sleepy proud")
THINGS = w.words("ball kite key hat book ring map coin boat lamp bell box flower stone shell umbrella doll drum scarf balloon button cake "
                 "cookie apple pumpkin carrot egg letter gift star feather blanket shoe clock mirror cup bike basket tree seed flute")
PLACES = w.words("forest garden village town valley castle meadow farm cave beach river lake mountain market school house hill island "
                 "park zoo city desert barn bridge harbor playground library pond sea moon kitchen")
WISHES = [("see the sea", "the sea was big and blue"), ("fly", "the wind carried everyone over the trees"), ("learn to swim", "the water was soft"),
          ("bake a cake", "the cake was sweet and warm"), ("climb the hill", "from the top they could see far away"), ("find gold", "the gold was in an old box"),
          ("build a house", "the house was small but warm"), ("catch a star", "the star was a light on the water"), ("find a friend", "a friend was there"),
          ("cross the river", "the other side was full of flowers"), ("sing a song", "everyone clapped"), ("plant a tree", "the tree grew tall and green"),
          ("visit grandma", "grandma had soup and warm bread"), ("find honey", "the honey was sweet and golden"), ("make a boat", "the boat did not sink"),
          ("go to school", "school was full of new friends"), ("see the snow", "the snow was white and cold"), ("dance", "the music played all night"),
          ("win the race", "everyone cheered at the finish"), ("go to the moon", "the moon was quiet and bright"), ("learn to read", "the book was full of wonders"),
          ("paint a picture", "the picture was full of colors"), ("fly a kite", "the kite went up into the sky"), ("find the way home", "home was just behind the hill"),
          ("play the drum", "the drum went boom, boom, boom"), ("grow a pumpkin", "the pumpkin was as big as a house")]
EVENTS = [("a birthday", "birthday"), ("a rainy day", "rain"), ("a picnic", "picnic"), ("winter", "winter"), ("a party", "party"), ("the first snow", "snow"),
          ("a race", "race"), ("summer", "summer"), ("a storm", "storm"), ("a trip", "trip"), ("a wedding", "wedding"), ("Christmas", "Christmas"),
          ("the first day of school", "first day of school"), ("a holiday", "holiday"), ("a concert", "concert"), ("spring", "spring")]
FEARS = w.words("the_dark water thunder the_wind fire heights ghosts mice dogs the_forest the_night snow loud_noises the_sea spiders")

OPEN = ["[Once upon a time|Once upon a time,|Long ago,|A long time ago,] there was {A}[| in a {place}].", "There [once was|was once] {A}[| who lived in a {place}].",
        "Once there was {A}.", "In a {place} there lived {A}.", "One [day|morning|evening], {A} [sat in a {place}|walked through a {place}|woke up early].",
        "One sunny [day|morning], {A} went for a walk.", "[{A} lived in a {place}.|{A} lived near a {place}.]"]
PLOTS = {
    "wish": ["[{H} wanted to {wish}.|More than anything, {H} wanted to {wish}.|Every day {H} dreamed of one thing: to {wish}.|\"I want to {wish},\" said {H}.]",
             "[But {he} did not know how.|But it was too hard to do alone.|But everyone said, \"You are too {look}!\"|{H} tried and tried, but nothing worked.]",
             "HELP", "[They worked all day and did not stop.|First they rested a little, and then they tried again.|They made a plan and set off together.]",
             "[At last|In the end|Soon|That evening], it was done: {found}."],
    "lost": ["[{H} had {a_thing}. {he} loved it very much.|The best thing {H} had was {a_thing}.]",
             "[But one day the {thing} was gone.|One morning {H} could not find the {thing}.|Then {H} lost the {thing} on the way home.]",
             "[{H} looked under the bed and behind the door.|{H} looked everywhere, but it was not there.|\"Where is my {thing}?\" {he} cried.]", "HELP",
             "[They found the {thing} under a bush.|The {thing} was in the tall grass.|There it was! The {thing} lay by the road.]"],
    "found": ["[One day, {H} found {a_thing} in the grass.|On the way to the {place}, {H} saw {a_thing}.|Under a leaf, {H} found {a_thing}.]",
              "[\"Whose {thing} is this?\" {he} asked.|The {thing} was old and full of dust, but it shone.|{H} had never seen such a fine {thing}.]",
              "[Just then {a_helper} came by. \"That {thing} is mine,\" said the {helper}.|{a_helper} was looking for the {thing}. \"I lost it yesterday,\" said the {helper}.]",
              "[{H} gave it back at once.|{H} wanted to keep it, but {he} gave it back.]", "[\"You are kind,\" said the {helper}. \"Let us share it.\"|The {helper} laughed and let {him} play with the {thing}.]"],
    "fear": ["[{H} was afraid of {fear}.|There was one thing that {H} did not like: {fear}.]", "[\"Do not be silly,\" said the others.|So {he} stayed at home every day.|{H} hid under the bed.]",
             "[Then {a_helper} came to the door. \"Come with me,\" said the {helper}. \"I will hold your hand.\"|One day {a_helper} called for help, and nobody else was there.]",
             "[{H} shook, but {he} took one step, and then another.|{H} closed {his} eyes and went out.]", "[Nothing bad happened. \"I am not afraid any more,\" said {H}.|After a while {he} was not afraid of {fear} any more.]"],
    "visit": ["[{H} had never been to the {goal}.|One day, {H} went to the {goal}.|\"Today I will go to the {goal},\" said {H}.]",
              "[The way was long, and soon {he} was tired.|It began to rain, and the path was wet.|A big rock lay in the way.]", "HELP",
              "[Together they came to the {goal}.|At last they could see the {goal}.]", "[It was more beautiful than {he} had thought.|They sat down and looked at everything for a long time.|There was so much to see!]"],
    "event": ["[It was time for {event}.|Everyone talked about {event}.|Today was the day of the {event_word}.]", "[{H} wanted everything to be nice.|{H} could not sleep, because {he} was so happy.]",
              "[But something went wrong: there was nothing to eat.|But then a strong wind blew everything away.|But {H} was all alone.]", "HELP",
              "[They sang and laughed and ate soup.|The {event_word} was the best one ever.|Soon there was music, and everyone came.]"],
    "friends": ["[{H} met {a_helper}.|One day {a_helper} came to the {place}.|{H} had a friend, {a_helper}.]", "[They played together every day.|They wanted to play the same game.|They both liked to run and jump.]",
                "[But then they both wanted the same {thing}.|One day they found {a_thing} and did not know who should have it.]", "[\"It is mine!\" said the {helper}. {H} was sad and went away.|They did not speak for a whole day.]",
                "[Then {H} came back. \"Let us share the {thing},\" {he} said.|\"I am sorry,\" said the {helper}. They cut the day in two and took turns with the {thing}.]"],
}
HELP = ["[Then {a_helper} came by.|{a_helper} saw {him} and came near.|Just then, {H} met {a_helper}.] [\"Why are you sad?\" asked the {helper}.|\"What is the matter?\" asked the {helper}.|\"Hello,\" said the {helper}.] "
        "[\"I can help you,\" said the {helper}.|\"We can do it together,\" said the {helper}.|\"Come with me,\" said the {helper}. \"I know what to do.\"]"]
ENDS = ["{H} was very happy. \"Thank you,\" {he} said.", "{H} smiled. From that day on, they were best friends.", "\"We did it!\" said {H}. They danced until it was dark.",
        "{H} learned that it is good to ask for help.", "That night {H} slept well.", "They all went home and had a good dinner.", "And they lived happily ever after.",
        "{H} told everyone about it.", "After that, {H} and the {helper} met every day."]
ASK = ["Write a story about {}.", "Write a short story about {}.", "Tell me a story about {}.", "Tell a story about {}.", "A story about {}.",
       "Make up a story about {}.", "Please write a story about {}.", "Can you tell me a story about {}?", "I want a story about {}.", "Story about {}"]
NO_TOPIC = ["Tell me a story.", "Write a story.", "Tell me a short story.", "Write a short story.", "Tell a story", "A bedtime story, please."]


def story(rng: random.Random) -> dict:
    """A request or the first words of a story, and the story."""
    girl = rng.random() < 0.5
    kind = rng.choice(CREATURES if rng.random() < 0.65 else WOMEN if girl else MEN)
    he, him, his = ("she", "her", "her") if girl else ("he", "him", "his")
    helper = rng.choice([noun for noun in CREATURES + MEN + WOMEN if noun != kind])
    look, name = rng.choice(LOOKS), rng.choice(w.GIRLS if girl else w.BOYS)
    named = rng.random() < 0.45
    thing, place = rng.choice(THINGS), rng.choice(PLACES)
    goal = rng.choice([other for other in PLACES if other != place])
    wish, found = rng.choice(WISHES)
    event, event_word = rng.choice(EVENTS)
    plot = rng.choices(list(PLOTS), [24, 14, 12, 8, 14, 12, 16])[0]
    bare_look = rng.random() < 0.2
    hero = w.article(kind if bare_look else f"{look} {kind}")
    values = {"H": name if named else f"the {kind}", "he": he, "him": him, "his": his, "helper": helper, "a_helper": w.article(helper),
              "thing": thing, "place": place, "goal": goal, "wish": wish, "found": found, "event": event, "event_word": event_word, "look": look,
              "fear": rng.choice(FEARS), "a_thing": w.article(rng.choice(["", "", "red ", "magic ", "little ", "golden ", "old "]) + thing)}
    values["A"] = hero + (rng.choice([" named ", " called "]) + name if named else "")
    parts = [rng.choice(OPEN), *PLOTS[plot], *rng.sample(ENDS[:6], 1), *rng.sample(ENDS[6:], rng.randint(0, 1))]
    text = choose(rng, " ".join(HELP[0] if part == "HELP" else part for part in parts)).format(**values)
    text = re.sub(r"\b([Aa]) (?=[aeio])(?!one)", r"\1n ", text)
    text = re.sub(r"(^|[.?!:]\"? \"?|^\")([a-z])", lambda match: match[1] + match[2].upper(), text)
    text = re.sub(r"([?!]\" )(Asked|Said|He said|She said|He cried|She cried|He asked|She asked)",
                  lambda match: match[1] + match[2][0].lower() + match[2][1:], text)
    text = re.sub(r": ([A-Z])(?!hristmas)", lambda match: ": " + match[1].lower(), text)
    if rng.random() < 0.35:
        first = text.split(" ")
        size = rng.choice([3, 4, 4, 5, 6, 7, 8, 10])
        return {"task": "text", "prompt": " ".join(first[:size]), "response": " " + " ".join(first[size:]), "hero": he}
    who = f"{hero} named {name}" if named and rng.random() < 0.4 else hero
    topics = {"wish": [f"{who} who wants to {wish}", f"{who} who wanted to {wish}"], "lost": [f"{who} who lost {his} {thing}", f"{who} and {his} {thing}", f"a lost {thing}"],
              "found": [f"{who} who finds {values['a_thing']}", values["a_thing"], f"{who} and {values['a_thing']}"],
              "fear": [f"{who} who is afraid of {values['fear']}"], "visit": [f"{who} who goes to the {goal}", f"{who} in the {goal}", f"the {goal}", f"a trip to the {goal}"],
              "event": [event, f"{who} and {event}", event], "friends": [f"{who} and {w.article(helper)}", f"{w.article(kind)} and {w.article(helper)}", "two friends", f"the {kind} and the {helper}"]}
    topic = rng.choice([*topics[plot], *topics[plot], who, w.article(kind)])
    ask = rng.choice(NO_TOPIC) if rng.random() < 0.05 else rng.choice(ASK).format(topic)
    if rng.random() < 0.06:
        ask = ask.lower()
    if rng.random() < 0.12:
        ask += "\nStory:"
    return {"task": "text", "prompt": ask, "response": " " + text, "hero": he}
