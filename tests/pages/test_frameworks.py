"""The how-tos for Django and FastAPI, run as projects of theirs on every database that they name."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import django
import pytest
import sqlalchemy as sa

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to" / "applications"
FILES = re.compile(r"```python\n# (\S+\.py)\n(.*?)```", re.DOTALL)


def write_project(page: str, folder: Path) -> None:
    for name, text in FILES.findall((HOW_TO / page).read_text()):
        path = folder / name
        for parent in (path.parent, *path.parent.relative_to(folder).parents):
            (folder / parent).mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for each in [folder / "shop", *(one for one in (folder / "shop").rglob("*") if one.is_dir())]:
        (each / "__init__.py").touch()


def run(folder: Path, script: str, **environment: str) -> dict[str, Any]:
    """Run a script in the project, and give what it prints last, which is JSON."""
    ran = subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


DJANGO = """
import json, os, sys

if "MySQLdb" in os.environ["AS"]:
    import pymysql
    pymysql.install_as_MySQLdb()

import django
from django.conf import settings
from django.urls import path

settings.configure(
    ALLOWED_HOSTS=["testserver"],
    DATABASES={"default": json.loads(os.environ["DATABASE"])},
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    INSTALLED_APPS=["shop"],
    ROOT_URLCONF="__main__",
)
django.setup()

from django.core.management import call_command
from django.db import connection, transaction
from django.test import Client
from shop.models import Sale
from shop.queues import invoices
from shop.views import order

urlpatterns = [path("orders", order)]
call_command("migrate", run_syncdb=True, verbosity=0)

client = Client()
sales = [client.post("/orders", {"customer": customer}).json()["sale"] for customer in ("ada", "ben", "ada")]
try:
    with transaction.atomic():
        client.post("/orders", {"customer": "cem"})
        raise RuntimeError
except RuntimeError:
    pass
rolled_back = invoices().stats().ready - len(sales)
with transaction.atomic():  # a savepoint that is rolled back takes its message along
    invoices().put({"sale": sales[0]}, connection=connection)
    try:
        with transaction.atomic():
            invoices().put({"sale": sales[1]}, connection=connection)
            raise RuntimeError
    except RuntimeError:
        pass
without_atomic = invoices().put({"sale": sales[2]}, connection=connection)
try:
    with transaction.atomic():
        transaction.set_rollback(True)
        invoices().put({"sale": 0}, connection=connection)
except transaction.TransactionManagementError as error:
    refused = type(error).__name__
put = invoices().stats().ready
call_command("send_invoices", "--once")
if connection.vendor == "postgresql":  # a restart of the server ends its connections
    with connection.cursor() as cursor, invoices().context.backend.engine.begin() as other:
        cursor.execute("SELECT pg_backend_pid()")
        other.exec_driver_sql(f"SELECT pg_terminate_backend({cursor.fetchone()[0]}, 5000)")
invoices().put({"sale": sales[0]})
call_command("send_invoices", "--once")
with connection.cursor() as cursor:  # Django's cursors are as they were
    cursor.execute("SELECT COUNT(*) FROM shop_sale WHERE invoiced = %s", [True])
    invoiced = cursor.fetchone()[0]
print(json.dumps({
    "rolled_back": rolled_back, "put": put, "refused": refused, "acked": invoices().stats().acked,
    "invoiced": invoiced, "sales": Sale.objects.count(),
}))
"""


def django_database(url: str, **options: Any) -> dict[str, Any]:
    parsed = sa.make_url(url)
    engine = {"postgresql": "postgresql", "mysql": "mysql", "sqlite": "sqlite3"}[parsed.get_backend_name()]
    return {
        "ENGINE": f"django.db.backends.{engine}",
        "NAME": parsed.database,
        "USER": parsed.username or "",
        "PASSWORD": parsed.password or "",
        "HOST": parsed.host or "",
        "PORT": str(parsed.port or ""),
        "OPTIONS": options,
    }


def test_the_page_on_django_runs_as_a_project(database_url: str, tmp_path: Path) -> None:
    write_project("use-with-django.md", tmp_path)
    kind = sa.make_url(database_url).get_backend_name()
    options = {"sqlite": {"transaction_mode": "IMMEDIATE"}, "postgresql": {"server_side_binding": True}}.get(kind, {})
    found = run(
        tmp_path,
        DJANGO,
        DATABASE=json.dumps(django_database(database_url, **options)),
        AS="MySQLdb" if kind == "mysql" else "",
    )
    assert found == {
        "rolled_back": 0,
        "put": 5,
        "refused": "TransactionManagementError",
        "acked": 6,
        "invoiced": 3,
        "sales": 3,
    }


DJANGO_TASKS = """
import json, os, sys
from io import StringIO

import django
from django.conf import settings
from django.urls import path

TASKS = ["django_tasks"] if django.VERSION < (6,) else []
settings.configure(
    ALLOWED_HOSTS=["testserver"],
    DATABASES={"default": json.loads(os.environ["DATABASE"])},
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    INSTALLED_APPS=[
        *(f"django.contrib.{name}" for name in ("admin", "auth", "contenttypes", "sessions", "messages")),
        *TASKS,
        "shop",
    ],
    MIDDLEWARE=[
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    ],
    TEMPLATES=[{
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {"context_processors": [
            f"django.{name}" for name in (
                "template.context_processors.request", "contrib.auth.context_processors.auth",
                "contrib.messages.context_processors.messages",
            )
        ]},
    }],
    TASKS={"default": {"BACKEND": "shop.task_backend.WaterclockBackend"}},
    PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
    SECRET_KEY="secret",
    ROOT_URLCONF="__main__",
)
django.setup()

from django.contrib import admin
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import transaction
from django.test import Client
from waterclock.testing import drain
from shop.management.commands.run_tasks import run
from shop.models import Sale
from shop.queues import database, tasks
from shop.tasks import send_invoice

urlpatterns = [path("admin/", admin.site.urls)]
tasks()
call_command("migrate", run_syncdb=True, verbosity=0)
with transaction.atomic():
    sale = Sale.objects.create(customer="ada")
    result = send_invoice.enqueue(sale.pk)
try:
    with transaction.atomic():
        send_invoice.enqueue(sale.pk)
        raise RuntimeError
except RuntimeError:
    pass
ready = tasks().stats().ready
drain(tasks(), run)

database().table("dead_tasks").put({"task": "shop.tasks.send_invoice", "args": [], "kwargs": {}})
said = StringIO()
call_command("check", databases=["default"], stderr=said)
client = Client()
client.force_login(User.objects.create_superuser("root"))
page = client.get("/admin/shop/messagetable/")
print(json.dumps({
    "status": result.status, "id": result.id, "ready": ready, "invoiced": Sale.objects.get().invoiced,
    "warns": "shop.W001" in said.getvalue(), "listed": "dead_tasks" in page.content.decode(),
    "add": client.get("/admin/shop/messagetable/add/").status_code,
    "delete": client.post("/admin/shop/messagetable/1/delete/", {"post": "yes"}).status_code,
}))
"""


@pytest.mark.one_database
def test_tasks_checks_and_the_admin_of_django(sqlite_url: str, tmp_path: Path) -> None:
    write_project("use-with-django.md", tmp_path)
    if django.VERSION < (6,):  # it comes without tasks; django-tasks is the same code for it
        for path in (tmp_path / "shop").rglob("*.py"):
            path.write_text(path.read_text().replace("django.tasks", "django_tasks"))
    options = {"transaction_mode": "IMMEDIATE"}
    found = run(tmp_path, DJANGO_TASKS, DATABASE=json.dumps(django_database(sqlite_url, **options)))
    assert found == {
        "status": "READY",
        "id": "1",
        "ready": 1,
        "invoiced": True,
        "warns": True,
        "listed": True,
        "add": 403,
        "delete": 403,
    }


FASTAPI = """
import importlib, json, os
from fastapi.testclient import TestClient
import waterclock as wc
from shop.models import Sale
from shop.worker import send_invoices
import sqlalchemy as sa

app = importlib.import_module(os.environ["MODULE"]).app
with TestClient(app) as client:
    answers = [
        client.post("/orders", params={"customer": customer, "stock": stock}).status_code
        for customer, stock in (("ada", 1), ("ben", 0), ("ada", 1), ("cem", 1))
    ]
with wc.connect(os.environ["DATABASE_URL"]) as database:
    ready = database.table("invoices").stats().ready
    send_invoices(database)
    with database.backend.engine.connect() as connection:
        rows = [list(row) for row in connection.execute(sa.select(Sale.customer, Sale.invoiced).order_by(Sale.id))]
    acked = database.table("invoices").stats().acked
print(json.dumps({"answers": answers, "ready": ready, "acked": acked, "rows": rows}))
"""

SERVED = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg", "mariadb": "ordinary"}


@pytest.mark.parametrize(
    ("database_url", "driver"),
    SERVED.items(),
    indirect=["database_url"],
)
def test_the_page_on_fastapi_runs_as_a_project(database_url: str, driver: str, tmp_path: Path) -> None:
    write_project("use-with-fastapi.md", tmp_path)
    found = run(
        tmp_path,
        FASTAPI,
        MODULE="shop.ordinary" if driver == "ordinary" else "shop.asynchronous",
        DATABASE_URL=database_url,
        ASYNC_DATABASE_URL=""
        if driver == "ordinary"
        else sa.make_url(database_url).set(drivername=driver).render_as_string(hide_password=False),
    )
    assert found == {
        "answers": [200, 409, 200, 200],
        "ready": 3,
        "acked": 3,
        "rows": [["ada", True], ["ada", True], ["cem", True]],
    }


LIFESPAN = """
import json
from fastapi.testclient import TestClient

with TestClient(app) as client:
    before = client.portal.call(app.state.orders.stats).acked
    answer = client.post("/orders", params={"press": 5}).status_code
    while client.portal.call(app.state.orders.stats).acked == before:
        pass
print(json.dumps({"answer": answer}))
"""


@pytest.mark.one_database
def test_a_worker_runs_in_the_lifespan_of_fastapi(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (HOW_TO / "use-from-asyncio.md").read_text(), re.DOTALL)
    assert run(tmp_path, "\n".join([*blocks, LIFESPAN])) == {"answer": 200}


FLASK = """
import json, os
import sqlalchemy as sa
import waterclock as wc
from waterclock.testing import drain
from shop.app import create_app
from shop.invoices import send
from shop.models import Sale

client = create_app().test_client()
answers = [client.post("/orders", data=data).status_code for data in ({"customer": "ada"}, {}, {"customer": "ben"})]
with wc.connect(os.environ["DATABASE_URL"]) as database:
    invoices = database.table("invoices")
    ready = invoices.stats().ready
    drain(invoices, send)
    with database.backend.engine.connect() as connection:
        rows = [list(row) for row in connection.execute(sa.select(Sale.customer, Sale.invoiced).order_by(Sale.id))]
    acked = invoices.stats().acked
print(json.dumps({"answers": answers, "ready": ready, "acked": acked, "rows": rows}))
"""


@pytest.mark.one_database
def test_the_page_on_flask_runs_as_a_project(sqlite_url: str, tmp_path: Path) -> None:
    write_project("use-with-flask.md", tmp_path)
    assert run(tmp_path, FLASK, DATABASE_URL=sqlite_url) == {
        "answers": [200, 400, 200],
        "ready": 2,
        "acked": 2,
        "rows": [["ada", True], ["ben", True]],
    }


PSYCOPG = """
import json, os
import psycopg
import waterclock as wc
from shop.sales import order, send

url = os.environ["DATABASE_URL"]
with wc.connect(url) as database, psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
    connection.execute("CREATE TABLE sales (id serial PRIMARY KEY, customer text, invoiced boolean DEFAULT false)")
    invoices = database.create_table("invoices", payload="json")
    order(connection, invoices, "ada")
    try:
        with connection.transaction():
            order(connection, invoices, "ben")
            raise RuntimeError
    except RuntimeError:
        ready = invoices.stats().ready
    send(connection, invoices)
    rows = connection.execute("SELECT customer, invoiced FROM sales").fetchall()
    print(json.dumps({"ready": ready, "acked": invoices.stats().acked, "rows": rows}))
"""


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_the_page_on_psycopg_runs_as_a_project(database_url: str, tmp_path: Path) -> None:
    write_project("use-your-own-connection.md", tmp_path)
    assert run(tmp_path, PSYCOPG, DATABASE_URL=database_url) == {"ready": 1, "acked": 1, "rows": [["ada", True]]}
