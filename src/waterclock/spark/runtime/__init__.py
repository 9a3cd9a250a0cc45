"""The Spark session, its Java and its Python workers."""
