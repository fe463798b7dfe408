"""Events: what happened. Past tense, and the only way into the core.

Three sources: the process itself (a user's verb, a task that ran), the runner (a timer, an exit), and other machines,
whose messages are events here (`Send` in commands.py). Each outcome of an order carries task, attempt and node
incarnation where late news must be told from fresh. Values never appear: ids, sizes, places, statuses, error kinds.

Events are slotted and not frozen, for speed; nobody changes one after making it.

A module holds the events of one source or one subject. The unions here say which machine can hear which.
"""

from __future__ import annotations

from typing import TypeAlias

from dualray.shared.model.events.actors import (
    ActorChanged,
    ActorExited,
    ActorFailed,
    ActorKillRequested,
    ActorLeaving,
    ActorLeavingHeard,
    ActorNameReported,
    ActorNameRequested,
    ActorOutOfScope,
    ActorRegistered,
    ActorSubscribed,
    WorkerRetired,
    WorkerSpent,
    WorkerUnwanted,
)
from dualray.shared.model.events.inquiries import (
    ClusterStateReported,
    ClusterStateRequested,
    RowsReported,
    RowsRequested,
    WaitExplained,
)
from dualray.shared.model.events.leases import (
    BundlesUnwanted,
    BundleWanted,
    LeasedWorkerDied,
    LeaseGranted,
    LeasePassedOn,
    LeaseRefused,
    LeaseRequested,
    LeaseReturned,
    LeasesGranted,
    LeasesRecalled,
    LeasesReturned,
    LeaseWanted,
    PlacementGroupNoted,
    PlacementGroupRequested,
    PlacementGroupUnwanted,
    ResourcesReported,
    TurnWanted,
    WorkerBlocked,
    WorkerUnblocked,
)
from dualray.shared.model.events.membership import (
    ClusterChanged,
    CopyKept,
    CopyWanted,
    DriverJoined,
    DriverLeft,
    LinkLost,
    NodeDied,
    NodeDraining,
    NodeEmptied,
    NodeJoined,
    NodeRefused,
    NodeReleased,
    NodesDied,
    NodeWelcomed,
    WorkerDied,
    lives_over,
)
from dualray.shared.model.events.objects import (
    ArgumentsLent,
    CollectionWanted,
    CopiesDoubted,
    CopiesJudged,
    ItemsDoubted,
    Loan,
    LoanPinned,
    LoansAsked,
    LoansKept,
    LoansKnown,
    LocationsKnown,
    LocationsWanted,
    NodeThere,
    ObjectAdded,
    ObjectArrived,
    ObjectDemanded,
    ObjectElsewhere,
    ObjectFailed,
    ObjectNotHere,
    ObjectPlaced,
    ObjectReleased,
    ObjectRemoved,
    ObjectRequested,
    ObjectsAwaited,
    ObjectSealed,
    ObjectsFreed,
    ObjectUnavailable,
    ObjectWanted,
    RoomWanted,
    SpaceDenied,
    SpaceGranted,
    SpaceRequested,
    SpaceReturned,
)
from dualray.shared.model.events.runner import (
    DrainAsked,
    GpuLost,
    MemoryExceeded,
    NodeHeard,
    NodeSilent,
    ObjectReceived,
    ObjectRestored,
    ObjectSent,
    ObjectSpilled,
    PeerLost,
    ReceiveFailed,
    ReserveFailed,
    RestoreFailed,
    SpaceReserved,
    SpillFailed,
    Started,
    TimerFired,
    WorkerExited,
    WorkerNotStarted,
    WorkerReady,
)
from dualray.shared.model.events.scaling import BacklogReported, BacklogWanted, LaunchesFailed, ResourcesWanted
from dualray.shared.model.events.tasks import (
    Call,
    CancelRequested,
    ItemReported,
    ItemsRead,
    TaskFinished,
    TaskPushed,
    TasksFinished,
    TasksPushed,
    TasksRecalled,
    TasksWanted,
    TaskUnwanted,
    new_finished,
    new_push,
)
from dualray.shared.model.events.user import (
    ActorExitAsked,
    ActorKillAsked,
    ActorNameAsked,
    CancelAsked,
    ClusterStateAsked,
    ItemMade,
    ItemsEnded,
    ItemTaken,
    Outcome,
    PlacementGroupAsked,
    PlacementGroupRemovalAsked,
    PromiseKept,
    PutAbandoned,
    RefsAdded,
    RefsDropped,
    Result,
    RowsAsked,
    SpaceWanted,
    SpaceWritten,
    TaskRan,
    TasksRan,
    TaskSubmitted,
    ValuePromised,
    ValuePut,
    ViewReleased,
    WaitAbandoned,
    WaitStarted,
)
from dualray.shared.model.events.values import (
    BorrowAcknowledged,
    BorrowAdded,
    BorrowRemoved,
    OwnerDied,
    PeerMet,
    ResultsTaken,
    ValueReported,
    ValueRequested,
)

__all__ = [
    "ActorChanged",
    "ActorExitAsked",
    "ActorExited",
    "ActorFailed",
    "ActorKillAsked",
    "ActorKillRequested",
    "ActorLeaving",
    "ActorLeavingHeard",
    "ActorNameAsked",
    "ActorNameReported",
    "ActorNameRequested",
    "ActorOutOfScope",
    "ActorRegistered",
    "ActorSubscribed",
    "ArgumentsLent",
    "BacklogReported",
    "BacklogWanted",
    "BorrowAcknowledged",
    "BorrowAdded",
    "BorrowRemoved",
    "BundleWanted",
    "BundlesUnwanted",
    "Call",
    "CancelAsked",
    "CancelRequested",
    "ClusterChanged",
    "ClusterStateAsked",
    "ClusterStateReported",
    "ClusterStateRequested",
    "CollectionWanted",
    "CopiesDoubted",
    "CopiesJudged",
    "CopyKept",
    "CopyWanted",
    "DrainAsked",
    "DriverJoined",
    "DriverLeft",
    "Event",
    "GpuLost",
    "HeadMessage",
    "ItemMade",
    "ItemReported",
    "ItemTaken",
    "ItemsDoubted",
    "ItemsEnded",
    "ItemsRead",
    "LaunchesFailed",
    "LeaseGranted",
    "LeasePassedOn",
    "LeaseRefused",
    "LeaseRequested",
    "LeaseReturned",
    "LeaseWanted",
    "LeasedWorkerDied",
    "LeasesGranted",
    "LeasesRecalled",
    "LeasesReturned",
    "LinkLost",
    "Loan",
    "LoanPinned",
    "LoansAsked",
    "LoansKept",
    "LoansKnown",
    "LocalEvent",
    "LocationsKnown",
    "LocationsWanted",
    "MemoryExceeded",
    "NodeDied",
    "NodeDraining",
    "NodeEmptied",
    "NodeHeard",
    "NodeJoined",
    "NodeMessage",
    "NodeRefused",
    "NodeReleased",
    "NodeSilent",
    "NodeThere",
    "NodeWelcomed",
    "NodesDied",
    "ObjectAdded",
    "ObjectArrived",
    "ObjectDemanded",
    "ObjectElsewhere",
    "ObjectFailed",
    "ObjectNotHere",
    "ObjectPlaced",
    "ObjectReceived",
    "ObjectReleased",
    "ObjectRemoved",
    "ObjectRequested",
    "ObjectRestored",
    "ObjectSealed",
    "ObjectSent",
    "ObjectSpilled",
    "ObjectUnavailable",
    "ObjectWanted",
    "ObjectsAwaited",
    "ObjectsFreed",
    "Outcome",
    "OwnerDied",
    "PeerLost",
    "PeerMet",
    "PlacementGroupAsked",
    "PlacementGroupNoted",
    "PlacementGroupRemovalAsked",
    "PlacementGroupRequested",
    "PlacementGroupUnwanted",
    "ProcessMessage",
    "PromiseKept",
    "PutAbandoned",
    "ReceiveFailed",
    "RefsAdded",
    "RefsDropped",
    "ReserveFailed",
    "ResourcesReported",
    "ResourcesWanted",
    "RestoreFailed",
    "Result",
    "ResultsTaken",
    "RoomWanted",
    "RowsAsked",
    "RowsReported",
    "RowsRequested",
    "SpaceDenied",
    "SpaceGranted",
    "SpaceRequested",
    "SpaceReserved",
    "SpaceReturned",
    "SpaceWanted",
    "SpaceWritten",
    "SpillFailed",
    "Started",
    "TaskFinished",
    "TaskPushed",
    "TaskRan",
    "TaskSubmitted",
    "TaskUnwanted",
    "TasksFinished",
    "TasksPushed",
    "TasksRan",
    "TasksRecalled",
    "TasksWanted",
    "TimerFired",
    "TurnWanted",
    "ValuePromised",
    "ValuePut",
    "ValueReported",
    "ValueRequested",
    "ViewReleased",
    "WaitAbandoned",
    "WaitExplained",
    "WaitStarted",
    "WorkerBlocked",
    "WorkerDied",
    "WorkerExited",
    "WorkerNotStarted",
    "WorkerReady",
    "WorkerRetired",
    "WorkerSpent",
    "WorkerUnblocked",
    "WorkerUnwanted",
    "lives_over",
    "new_finished",
    "new_push",
]

LocalEvent: TypeAlias = (
    TaskSubmitted
    | ValuePut
    | ValuePromised
    | PromiseKept
    | SpaceWanted
    | SpaceWritten
    | PutAbandoned
    | WaitAbandoned
    | WaitStarted
    | RefsAdded
    | RefsDropped
    | ViewReleased
    | TaskRan
    | TasksRan
    | ItemMade
    | ItemsEnded
    | ItemTaken
    | ActorKillAsked
    | ActorNameAsked
    | ActorExitAsked
    | CancelAsked
    | PlacementGroupAsked
    | PlacementGroupRemovalAsked
    | RowsAsked
    | ClusterStateAsked
    | Started
    | TimerFired
    | DrainAsked
    | WorkerReady
    | WorkerExited
    | WorkerNotStarted
    | NodeSilent
    | NodeHeard
    | PeerLost
    | SpaceReserved
    | ReserveFailed
    | ObjectSpilled
    | SpillFailed
    | ObjectRestored
    | RestoreFailed
    | GpuLost
    | MemoryExceeded
    | ObjectSent
    | ObjectReceived
    | ReceiveFailed
    | LaunchesFailed
    | ResourcesWanted
)
"""What the process itself and its runner report."""

ProcessMessage: TypeAlias = (
    BacklogWanted
    | LeaseGranted
    | LeasesGranted
    | LeaseRefused
    | LeaseWanted
    | WorkerRetired
    | LeasedWorkerDied
    | TaskPushed
    | TasksPushed
    | TaskFinished
    | TasksFinished
    | TasksRecalled
    | TasksWanted
    | ItemReported
    | ItemsRead
    | CancelRequested
    | TaskUnwanted
    | ValueRequested
    | ValueReported
    | BorrowAdded
    | BorrowAcknowledged
    | BorrowRemoved
    | ResultsTaken
    | OwnerDied
    | ObjectArrived
    | ObjectUnavailable
    | SpaceGranted
    | SpaceDenied
    | RoomWanted
    | CollectionWanted
    | ArgumentsLent
    | LoansKept
    | LoanPinned
    | LoansAsked
    | ObjectDemanded
    | CopiesDoubted
    | ActorChanged
    | ActorLeaving
    | ActorLeavingHeard
    | ActorNameReported
    | NodeDied
    | NodesDied
    | ClusterChanged
    | ClusterStateReported
    | PlacementGroupNoted
    | RowsRequested
    | RowsReported
    | WaitExplained
    | LinkLost
)
"""What a driver or worker hears from others."""

NodeMessage: TypeAlias = (
    LeaseRequested
    | LeasePassedOn
    | LeaseReturned
    | LeasesReturned
    | TurnWanted
    | LeasesRecalled
    | BundleWanted
    | BundlesUnwanted
    | RowsRequested
    | WorkerBlocked
    | WorkerUnblocked
    | OwnerDied
    | PeerMet
    | ObjectWanted
    | ObjectReleased
    | SpaceRequested
    | SpaceReturned
    | ObjectSealed
    | ObjectPlaced
    | LoansKnown
    | LocationsKnown
    | ObjectRequested
    | ObjectNotHere
    | ObjectElsewhere
    | ObjectsAwaited
    | NodeThere
    | ObjectsFreed
    | ObjectFailed
    | WorkerUnwanted
    | WorkerSpent
    | CopyWanted
    | NodeWelcomed
    | NodeRefused
    | NodeReleased
    | NodeDied
    | NodesDied
    | ClusterChanged
    | LinkLost
)
"""What a node manager hears from others."""

HeadMessage: TypeAlias = (
    LeaseRequested
    | LeaseGranted
    | LeaseRefused
    | LeasedWorkerDied
    | TaskFinished
    | ResourcesReported
    | ObjectAdded
    | ObjectRemoved
    | LocationsWanted
    | ObjectsFreed
    | ObjectFailed
    | ActorRegistered
    | ActorFailed
    | ActorSubscribed
    | ActorOutOfScope
    | ActorKillRequested
    | ActorNameRequested
    | ActorExited
    | BorrowAdded
    | BorrowRemoved
    | NodeJoined
    | NodeDraining
    | NodeEmptied
    | CopyKept
    | CopiesJudged
    | ItemsDoubted
    | WorkerDied
    | DriverJoined
    | DriverLeft
    | ClusterStateRequested
    | PlacementGroupRequested
    | PlacementGroupUnwanted
    | RowsRequested
    | LinkLost
    | BacklogReported
    | ResourcesWanted
)
"""What the head hears from others."""

Event: TypeAlias = LocalEvent | ProcessMessage | NodeMessage | HeadMessage
