from deploy.node_packages import NODE, environment


def test_node_is_the_program_itself_so_that_ending_it_ends_it():
    with NODE.open("rb") as file:
        assert file.read(4) == b"\x7fELF"


def test_programs_that_ask_for_node_get_that_of_the_virtual_environment():
    first = environment()["PATH"].split(":")[0]
    assert first.endswith("/bin")
    assert NODE.is_relative_to(first.removesuffix("/bin"))
