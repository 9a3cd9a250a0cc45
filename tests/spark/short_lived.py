"""How Spark runs where it has seconds of work: what it compiles for speed, or verifies of classes, never pays."""

from __future__ import annotations

JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
ENVIRONMENT = {"JAVA_TOOL_OPTIONS": JAVA}
UNCOMPILED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
SETTINGS = UNCOMPILED | {"spark.driver.defaultJavaOptions": JAVA}
