"""Tools of an online shop: customers, products, orders and returns."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

from openafm.annotation.environments.world import ToolError, World

_RETURN_DAYS = 30


def find_customer(world: World, email: str) -> dict[str, Any]:
    """Return a customer.

    Args:
        email: the address of the customer
    """
    found = world.row("SELECT * FROM customers WHERE email = ?", email.strip().lower())
    if found is None:
        raise ToolError(f"there is no customer {email}")
    return found


def list_orders(world: World, customer: str) -> list[dict[str, Any]]:
    """Return the orders of a customer, newest first.

    Args:
        customer: number of the customer, as in K-1
    """
    return world.rows("SELECT id, status, placed FROM orders WHERE customer = ? ORDER BY placed DESC", customer)


def get_order(world: World, order: str) -> dict[str, Any]:
    """Return an order with its lines and its total.

    Args:
        order: number of the order, as in O-501
    """
    found = _order(world, order)
    lines = world.rows(
        "SELECT l.product, p.name, l.quantity, l.price_eur FROM order_lines l JOIN products p ON p.id = l.product "
        "WHERE l.order_id = ?",
        order,
    )
    return found | {"lines": lines, "total_eur": _total(world, order)}


def search_products(world: World, text: str) -> list[dict[str, Any]]:
    """Find products by a part of their name or by their kind.

    Args:
        text: a part of the name, or paper, pens, books
    """
    return world.rows("SELECT * FROM products WHERE name LIKE ? OR kind = ? ORDER BY id", f"%{text}%", text.lower())


def place_order(world: World, customer: str, product: str, quantity: int = 1) -> dict[str, Any]:
    """Order a product to the customer's street.

    Args:
        customer: number of the customer, as in K-1
        product: number of the product, as in P-10
        quantity: number of pieces
    """
    buyer = world.row("SELECT street FROM customers WHERE id = ?", customer)
    if buyer is None:
        raise ToolError(f"there is no customer {customer}")
    order = world.new_id("orders", "O-")
    world.run(
        "INSERT INTO orders VALUES (?, ?, 'processing', ?, ?)",
        order,
        customer,
        world.now.date().isoformat(),
        buyer["street"],
    )
    _add_line(world, order, product, quantity)
    return {"order": order, "total_eur": _total(world, order)}


def add_to_order(world: World, order: str, product: str, quantity: int = 1) -> dict[str, Any]:
    """Add a product to an order that is not shipped yet.

    Args:
        order: number of the order, as in O-501
        product: number of the product, as in P-10
        quantity: number of pieces
    """
    _check_status(_order(world, order), "processing")
    _add_line(world, order, product, quantity)
    return {"order": order, "total_eur": _total(world, order)}


def change_address(world: World, order: str, street: str) -> dict[str, str]:
    """Change the street of an order that is not shipped yet.

    Args:
        order: number of the order, as in O-501
        street: the new street with its number
    """
    _check_status(_order(world, order), "processing")
    world.run("UPDATE orders SET street = ? WHERE id = ?", street, order)
    return {"order": order, "street": street}


def cancel_order(world: World, order: str) -> dict[str, Any]:
    """Cancel an order that is not shipped yet; its total becomes credit.

    Args:
        order: number of the order, as in O-501
    """
    found = _order(world, order)
    _check_status(found, "processing")
    return _give_back(world, found, "cancelled")


def return_order(world: World, order: str) -> dict[str, Any]:
    """Return a delivered order within 30 days; its total becomes credit.

    Args:
        order: number of the order, as in O-501
    """
    found = _order(world, order)
    _check_status(found, "delivered")
    if world.now.date() - date.fromisoformat(found["placed"]) > timedelta(days=_RETURN_DAYS):
        raise ToolError(f"the order {order} was placed on {found['placed']}, more than {_RETURN_DAYS} days ago")
    return _give_back(world, found, "returned")


def open_ticket(world: World, customer: str, text: str) -> dict[str, str]:
    """Pass a question to a person.

    Args:
        customer: number of the customer, as in K-1
        text: the question
    """
    ticket = world.new_id("tickets", "S-")
    world.run("INSERT INTO tickets VALUES (?, ?, ?)", ticket, customer, text)
    return {"ticket": ticket}


def _order(world: World, order: str) -> dict[str, Any]:
    found = world.row("SELECT * FROM orders WHERE id = ?", order)
    if found is None:
        raise ToolError(f"there is no order {order}")
    return found


def _check_status(order: dict[str, Any], status: str) -> None:
    if order["status"] != status:
        raise ToolError(f"the order {order['id']} is {order['status']}, not {status}")


def _total(world: World, order: str) -> float:
    row = world.row("SELECT COALESCE(SUM(quantity * price_eur), 0) AS total FROM order_lines WHERE order_id = ?", order)
    return float(row["total"]) if row else 0.0


def _add_line(world: World, order: str, product: str, quantity: int) -> None:
    found = world.row("SELECT * FROM products WHERE id = ?", product)
    if found is None:
        raise ToolError(f"there is no product {product}")
    if quantity < 1:
        raise ToolError("the quantity is at least 1")
    if found["stock"] < quantity:
        raise ToolError(f"there are {found['stock']} pieces of {product} in stock")
    world.run("UPDATE products SET stock = stock - ? WHERE id = ?", quantity, product)
    world.run("INSERT INTO order_lines VALUES (?, ?, ?, ?)", order, product, quantity, found["price_eur"])


def _give_back(world: World, order: dict[str, Any], status: str) -> dict[str, Any]:
    total = _total(world, order["id"])
    for line in world.rows("SELECT product, quantity FROM order_lines WHERE order_id = ?", order["id"]):
        world.run("UPDATE products SET stock = stock + ? WHERE id = ?", line["quantity"], line["product"])
    world.run("UPDATE orders SET status = ? WHERE id = ?", status, order["id"])
    world.run("UPDATE customers SET credit_eur = credit_eur + ? WHERE id = ?", total, order["customer"])
    return {"order": order["id"], "status": status, "credit_eur": total}
