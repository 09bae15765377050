"""Rules of five games, for prompts. Other games are introduced by their name."""

RULES = {
    "kuhn_poker": (
        "You play Kuhn poker: three cards, 0 < 1 < 2; each player pays 1 and gets one card. Answer Pass or Bet. "
        "A bet costs 1. To pass after a bet is to fold. Else the higher card wins the pot. "
        "The state is your card and the moves so far, p for pass and b for bet."
    ),
    "leduc_poker": (
        "You play Leduc poker: cards 0 to 5, where 0 and 1, 2 and 3, 4 and 5 have equal rank; each player pays 1 and "
        "gets one private card. There are two rounds of bets, at most two raises each, of 2 and then 4. A public card "
        "is shown before the second. A pair with the public card wins, else the higher rank. "
        "Answer Fold, Call or Raise."
    ),
    "liars_dice": (
        "You play liar's dice: each player has one die that the other does not see. In turn, bid how many dice of all "
        "players show a face, as quantity-face such as 1-4, higher than the bid before, or answer Liar. A six counts "
        "as any face. After Liar the last bidder wins if the bid is true, else the caller. "
        "The state is your die and the bids so far."
    ),
    "tiny_hanabi": (
        "You play a game of two partners who win together: each sees an own card, d0 or d1. Player 0 moves first, and "
        "player 1 sees that move. Both get the same points, 0 to 10, for their two moves. "
        "The state is your card, then the moves so far. Answer with one of the listed moves."
    ),
    "bargaining": (
        "You share out a pool of books, hats and basketballs with another player. Each values the items differently "
        "and knows only the own values. Offer what you would take for yourself, or answer Agree to accept the other's "
        "last offer. Without an agreement after ten offers nobody gets anything. Your result is the value you get."
    ),
}
"""Rules by OpenSpiel's short name of the game."""
