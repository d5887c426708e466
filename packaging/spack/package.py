# Draft for Spack; url and sha256 wait for a public home of the source archive.
from spack.package import *
from spack_repo.builtin.build_systems.python import PythonPackage


class PyBursar(PythonPackage):
    """Plans, buys and runs computing campaigns by deadline and budget."""

    homepage = "https://REPLACE-ME"
    url = "https://REPLACE-ME/bursar-0.1.0.tar.gz"

    license("Apache-2.0")

    version("0.1.0", sha256="0" * 64)

    variant("fast", default=False, description="Compile inner loops by Numba")
    variant("bounds", default=False, description="Prove least costs by SciPy")
    variant("table", default=False, description="Write Parquet and Arrow")

    depends_on("python@3.11:", type=("build", "run"))
    depends_on("py-hatchling@1.27:", type="build")

    # The manual pages are made from the command line's help: both are needed to build as well.
    depends_on("py-msgspec@0.18.6:", type=("build", "run"))
    depends_on("py-typer@0.29:", type=("build", "run"))

    with default_args(type="run"):
        depends_on("py-aiohttp@3.14:")
        depends_on("py-apsw@3.46:")
        depends_on("py-cloudpickle@3.0:")
        depends_on("py-cryptography@47:")
        depends_on("py-defusedxml@0.7:")
        depends_on("py-fsspec@2024.2:")
        depends_on("py-google-re2@1.1.20251105:")
        depends_on("py-httptools@0.6.1:")
        depends_on("py-lark@1.1.9:")
        depends_on("py-numpy@1.26:")
        depends_on("py-prometheus-client@0.20:")
        depends_on("py-rich@13.7:")
        depends_on("py-uvicorn@0.29:")
        depends_on("py-yarl@1.17:")

        depends_on("py-numba@0.60:", when="+fast")
        depends_on("py-scipy@1.12:", when="+bounds")
        depends_on("py-pyarrow@15:", when="+table")
