"""Tools of a travel agency: travelers, flights, hotels and bookings."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from openafm.annotation.environments.world import ToolError, World

_BAG_EUR = 25.0
_AIRPORTS = {"BER": "Berlin", "CDG": "Paris", "FCO": "Rome", "LIS": "Lisbon", "MAD": "Madrid"}
_RATES = {"EUR": 1.0, "USD": 1.09, "GBP": 0.86, "JPY": 161.0, "BRL": 6.1}


def find_traveler(world: World, name: str) -> list[dict[str, Any]]:
    """Find travelers by a part of their name.

    Args:
        name: a part of the name
    """
    return world.rows("SELECT id, name, email, balance_eur FROM travelers WHERE name LIKE ?", f"%{name}%")


def airport_code(city: str) -> str:
    """Return the code of a city's airport.

    Args:
        city: the English name of the city
    """
    for code, name in _AIRPORTS.items():
        if name.lower() == city.lower():
            return code
    raise ToolError(f"there is no airport of {city}; the cities are {', '.join(_AIRPORTS.values())}")


def search_flights(world: World, origin: str, destination: str, date: str) -> list[dict[str, Any]]:
    """Return the flights of a day with their free seats and prices.

    Args:
        origin: code of the airport
        destination: code of the airport
        date: the day, as in 2025-09-19
    """
    return world.rows(
        "SELECT id, departs, arrives, seats, price_eur FROM flights "
        "WHERE origin = ? AND destination = ? AND departs LIKE ? ORDER BY departs",
        origin,
        destination,
        f"{date}%",
    )


def search_hotels(world: World, city: str, max_night_eur: float | None = None) -> list[dict[str, Any]]:
    """Return the hotels of a city with free rooms.

    Args:
        city: the English name of the city
        max_night_eur: the highest price of a night
    """
    return world.rows(
        "SELECT id, name, rooms, night_eur, stars FROM hotels "
        "WHERE city = ? AND rooms > 0 AND night_eur <= ? ORDER BY night_eur",
        city,
        max_night_eur if max_night_eur is not None else 1e9,
    )


def book_flight(world: World, traveler: str, flight: str, bags: int = 0) -> dict[str, Any]:
    """Book a seat. The price is taken from the traveler's balance.

    Args:
        traveler: number of the traveler, as in T-1
        flight: number of the flight, as in OA101
        bags: checked bags, 25 euros each
    """
    found = world.row("SELECT seats, price_eur FROM flights WHERE id = ?", flight)
    if found is None:
        raise ToolError(f"there is no flight {flight}")
    if found["seats"] < 1:
        raise ToolError(f"the flight {flight} has no free seat")
    price = found["price_eur"] + bags * _BAG_EUR
    _pay(world, traveler, price)
    world.run("UPDATE flights SET seats = seats - 1 WHERE id = ?", flight)
    booking = world.new_id("bookings", "B-")
    world.run(
        "INSERT INTO bookings (id, traveler, flight, price_eur, bags, status) VALUES (?, ?, ?, ?, ?, 'confirmed')",
        booking,
        traveler,
        flight,
        price,
        bags,
    )
    return {"booking": booking, "price_eur": price}


def book_hotel(world: World, traveler: str, hotel: str, first_night: str, nights: int) -> dict[str, Any]:
    """Book a room. The price is taken from the traveler's balance.

    Args:
        traveler: number of the traveler, as in T-1
        hotel: number of the hotel, as in H-10
        first_night: the day of arrival, as in 2025-09-19
        nights: number of nights
    """
    found = world.row("SELECT rooms, night_eur FROM hotels WHERE id = ?", hotel)
    if found is None:
        raise ToolError(f"there is no hotel {hotel}")
    if found["rooms"] < 1:
        raise ToolError(f"the hotel {hotel} has no free room")
    if nights < 1:
        raise ToolError("a stay has at least one night")
    price = found["night_eur"] * nights
    _pay(world, traveler, price)
    world.run("UPDATE hotels SET rooms = rooms - 1 WHERE id = ?", hotel)
    booking = world.new_id("bookings", "B-")
    world.run(
        "INSERT INTO bookings (id, traveler, hotel, first_night, nights, price_eur, status) "
        "VALUES (?, ?, ?, ?, ?, ?, 'confirmed')",
        booking,
        traveler,
        hotel,
        first_night,
        nights,
        price,
    )
    return {"booking": booking, "price_eur": price}


def list_bookings(world: World, traveler: str) -> list[dict[str, Any]]:
    """Return the bookings of a traveler.

    Args:
        traveler: number of the traveler, as in T-1
    """
    return world.rows("SELECT * FROM bookings WHERE traveler = ? ORDER BY id", traveler)


def cancel_booking(world: World, booking: str) -> dict[str, Any]:
    """Cancel a booking and refund its price.

    Args:
        booking: number of the booking, as in B-1001
    """
    found = _changeable(world, booking)
    world.run("UPDATE bookings SET status = 'cancelled' WHERE id = ?", booking)
    world.run("UPDATE travelers SET balance_eur = balance_eur + ? WHERE id = ?", found["price_eur"], found["traveler"])
    world.run("UPDATE flights SET seats = seats + 1 WHERE id = ?", found["flight"])
    world.run("UPDATE hotels SET rooms = rooms + 1 WHERE id = ?", found["hotel"])
    return {"booking": booking, "refund_eur": found["price_eur"]}


def add_bags(world: World, booking: str, bags: int) -> dict[str, Any]:
    """Add checked bags to a booking of a flight, 25 euros each.

    Args:
        booking: number of the booking, as in B-1001
        bags: number of bags to add
    """
    found = _changeable(world, booking)
    if found["flight"] is None:
        raise ToolError(f"the booking {booking} has no flight")
    _pay(world, found["traveler"], bags * _BAG_EUR)
    world.run("UPDATE bookings SET bags = bags + ?, price_eur = price_eur + ? WHERE id = ?", bags, bags * _BAG_EUR, booking)
    return {"booking": booking, "bags": found["bags"] + bags}


def convert_currency(amount: float, to: str) -> dict[str, Any]:
    """Convert an amount of euros.

    Args:
        amount: the amount in euros
        to: code of the currency, as in USD
    """
    if to not in _RATES:
        raise ToolError(f"there is no rate of {to}; the currencies are {', '.join(_RATES)}")
    return {"amount": round(amount * _RATES[to], 2), "currency": to}


def _pay(world: World, traveler: str, price: float) -> None:
    found = world.row("SELECT balance_eur FROM travelers WHERE id = ?", traveler)
    if found is None:
        raise ToolError(f"there is no traveler {traveler}")
    if found["balance_eur"] < price:
        raise ToolError(f"the balance of {found['balance_eur']:.2f} euros is below the price of {price:.2f} euros")
    world.run("UPDATE travelers SET balance_eur = balance_eur - ? WHERE id = ?", price, traveler)


def _changeable(world: World, booking: str) -> dict[str, Any]:
    found = world.row("SELECT b.*, f.departs FROM bookings b LEFT JOIN flights f ON f.id = b.flight WHERE b.id = ?", booking)
    if found is None:
        raise ToolError(f"there is no booking {booking}")
    if found["status"] != "confirmed":
        raise ToolError(f"the booking {booking} is {found['status']}")
    departs = found["departs"] or f"{found['first_night']}T12:00"
    if datetime.fromisoformat(departs) - world.now < timedelta(hours=24):
        raise ToolError(f"the booking {booking} departs within 24 hours and can not be changed")
    return found
