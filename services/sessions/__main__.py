"""The process of the sessions service: `python -m services.sessions`."""

from services.common.capability_token import CapabilityVerifier
from services.common.clock import SystemClock
from services.common.errors import HarnessError
from services.common.ids import Identity
from services.common.server import Facade, Registration, Service, ServiceContext, run_service
from services.common.settings import load_settings
from services.common.store.service_store import open_service_store
from services.sessions.bindings import Bindings
from services.sessions.files.collection import FileCollector
from services.sessions.files.file import Allowance
from services.sessions.files.library import Library
from services.sessions.files.media import Allowed
from services.sessions.files.reading import AUDIENCE as FILES_AUDIENCE
from services.sessions.files.reading import FileReading
from services.sessions.files.store import FILE_COLLECTIONS, FileStore
from services.sessions.part_collection import PartCollector
from services.sessions.service import (
    FILE_LIBRARY_SERVICE,
    FILE_SERVICE,
    SESSION_SERVICE,
    THREAD_STATE_SERVICE,
    FileLibraryServicer,
    FileServicer,
    SessionServicer,
    ThreadStateServicer,
    add_file_library_servicer,
    add_file_servicer,
    add_session_servicer,
    add_thread_state_servicer,
)
from services.sessions.settings import SessionsSettings
from services.sessions.store import COLLECTIONS, SessionStore
from services.sessions.thread_state import STATE_AUDIENCE, ThreadState
from services.sessions.transfers import Transfers


async def build(context: ServiceContext[SessionsSettings]) -> Service:
    """Puts the service together; see `services.common.server`."""
    settings = context.settings
    records = await open_service_store("sessions", settings, (*COLLECTIONS, *FILE_COLLECTIONS))
    context.resources.push_async_callback(records.close)
    store, clock = SessionStore(records), SystemClock()
    identity = Identity(settings.identity_key.get_secret_value().encode("utf-8"), settings.environment)
    collector = PartCollector(store, clock, recheck_milliseconds=int(settings.part_recheck_seconds * 1000))
    bindings = Bindings(store, identity, clock, collector, max_waiting=settings.max_waiting_turns)
    transfers = Transfers(limit=settings.max_part_transfers, limit_of_binding=settings.max_part_transfers_of_binding)
    thread_state = ThreadState(
        store, bindings, transfers, clock, grace_milliseconds=int(settings.part_grace_seconds * 1000)
    )
    files = FileStore(records)
    file_transfers = Transfers(
        limit=settings.max_file_transfers, limit_of_binding=settings.max_file_transfers_of_subject, what="files"
    )
    library = Library(
        files,
        identity,
        clock,
        file_transfers,
        Allowance(settings.max_file_bytes, settings.max_files_of_subject, settings.max_file_bytes_of_subject),
        Allowed(settings.file_media_types),
        context.tasks,
        life_milliseconds=int(settings.file_life_seconds * 1000),
        # An upload is over by then, whatever became of it.
        grace_milliseconds=int((settings.file_transfer_seconds + settings.part_grace_seconds) * 1000),
    )
    file_collector = FileCollector(files, clock, recheck_milliseconds=int(settings.part_recheck_seconds * 1000))

    async def report_store() -> None:
        try:
            await store.check()
        except HarnessError:
            # I34: health says so until the store is back; calls answer with a retryable error meanwhile.
            await context.set_serving(False)
            raise
        await context.set_serving(True)

    async def start_background_work() -> None:
        context.tasks.every("collect-parts", settings.part_sweep_seconds, collector.turn)
        context.tasks.every("collect-files", settings.part_sweep_seconds, file_collector.turn)
        context.tasks.every("check-store", settings.store_check_seconds, report_store)

    return Service(
        [
            Registration(SESSION_SERVICE, add_session_servicer, SessionServicer(bindings)),
            Registration(
                FILE_LIBRARY_SERVICE,
                add_file_library_servicer,
                FileLibraryServicer(library, transfer_seconds=settings.file_transfer_seconds),
            ),
        ],
        facade=Facade(
            settings.facade_listen,
            CapabilityVerifier(settings.verify_keys(), STATE_AUDIENCE, FILES_AUDIENCE),
            [
                Registration(
                    THREAD_STATE_SERVICE,
                    add_thread_state_servicer,
                    ThreadStateServicer(thread_state, transfer_seconds=settings.part_transfer_seconds),
                ),
                Registration(
                    FILE_SERVICE,
                    add_file_servicer,
                    FileServicer(
                        FileReading(files, thread_state, file_transfers),
                        transfer_seconds=settings.file_transfer_seconds,
                    ),
                ),
            ],
        ),
        on_start=[start_background_work],
    )


if __name__ == "__main__":
    run_service("sessions", load_settings(SessionsSettings), build)
