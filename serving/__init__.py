"""Talking to a server that speaks OpenAI's protocol: completions, streams, log-probabilities, metrics.

A `Server` answers an `Ask`, at once or as a `Stream` with the time of each piece; `score` has it judge a given text.
What differs between engines is data, in engines.json. Needs httpx, which is imported when a server is first made.
"""

from serving.address import ServerAddress
from serving.answers import Answer, Ask, Message, Piece, Scores, Stream, Token, Usage
from serving.bootstrap import paired_interval, widened
from serving.engines import Engine, engines
from serving.faults import Declined, Incapable, ServerFault
from serving.metrics import Metrics, Sample, Speculation, parse_metrics, speculation
from serving.scoring import score, why_not_scoring
from serving.server import Server

__all__ = [
    "Answer",
    "Ask",
    "Declined",
    "Engine",
    "Incapable",
    "Message",
    "Metrics",
    "Piece",
    "Sample",
    "Scores",
    "Server",
    "ServerAddress",
    "ServerFault",
    "Speculation",
    "Stream",
    "Token",
    "Usage",
    "engines",
    "paired_interval",
    "parse_metrics",
    "score",
    "speculation",
    "why_not_scoring",
    "widened",
]
