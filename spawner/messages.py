"""Codes and numbers in, the sentence that a person reads out; English and Chinese.

A sentence says what happened, why, and what to do. Core decides with codes and never holds prose, so that every text
that people read about a start, a refusal or an end stands in this file.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

from spawner.core.exits import End, EndCode
from spawner.core.health import HealthCode
from spawner.core.model import GIB, Code, Refusal
from spawner.core.shares import Notice, NoticeCode

__all__ = ["TEXTS", "Language", "Phase", "ended", "notice", "phase", "sentence", "size"]

Language = Literal["en", "zh"]


class Phase(StrEnum):
    """The steps of a start, as the person who waits is told of them."""

    CHECKED = "checked"
    HOME = "home"
    PLACED = "placed"
    CREATED = "created"
    STARTED = "started"
    ANSWERS = "answers"


TEXTS: Mapping[StrEnum, Mapping[str, str]] = {
    Code.GPUS_LEASED: {
        "en": "No GPU is free for you: {leased} of {exist} are leased, no machine has more than {free} free, and you asked for {asked}. Try again later, or start without a GPU.",
        "zh": "没有空闲的 GPU：共 {exist} 个，已租出 {leased} 个，单台机器最多空闲 {free} 个，您请求 {asked} 个。请稍后再试，或不带 GPU 启动。",
    },
    Code.INSTANCES_LEASED: {
        "en": "No MIG instance is free for you: {leased} of {exist} are leased, {free} are left and you asked for {asked}. Try again later, or start without a GPU.",
        "zh": "没有空闲的 MIG 实例：共 {exist} 个，已租出 {leased} 个，剩余 {free} 个，您请求 {asked} 个。请稍后再试，或不带 GPU 启动。",
    },
    Code.SHARES_LEASED: {
        "en": "No share of a GPU is free for you: {leased} of {exist} shared GPUs are full or held by one server alone, {free} are left and you asked for {asked}. Try again later, or start without a GPU.",
        "zh": "没有空闲的共享 GPU：共 {exist} 个，其中 {leased} 个已满或被独占，剩余 {free} 个，您请求 {asked} 个。请稍后再试，或不带 GPU 启动。",
    },
    Code.GPU_ENTITLEMENT: {
        "en": "You asked for {asked} GPU(s) and hold {held}; your role allows {allowed} over all your servers. "
        "Stop another server or ask for fewer.",
        "zh": "您请求 {asked} 个 GPU，已持有 {held} 个；您的角色在所有服务器上合计最多 {allowed} 个。请停止其他服务器或减少请求。",
    },
    Code.ROLE_GPUS: {
        "en": "All of the role {role} together may hold {allowed} GPU(s) and hold {held}; you asked for {asked}. Try again later, or start without a GPU.",
        "zh": "角色 {role} 的所有人合计最多 {allowed} 个 GPU，已持有 {held} 个；您请求 {asked} 个。请稍后再试，或不带 GPU 启动。",
    },
    Code.ROLE_MISSING: {
        "en": "Your account is in none of the groups that may start a server here. Ask the operator to add you.",
        "zh": "您的账号不属于任何可以启动服务器的组。请联系管理员。",
    },
    Code.MODE_NOT_ALLOWED: {
        "en": "Your role ({role}) may not hold GPUs in the mode {mode}. Choose another option.",
        "zh": "您的角色（{role}）不能以 {mode} 模式使用 GPU。请选择其他选项。",
    },
    Code.MODE_NOT_OFFERED: {
        "en": "GPUs are not offered in the mode {mode} here. Choose another way or none.",
        "zh": "此处不提供 {mode} 模式的 GPU。请选择其他方式或不使用 GPU。",
    },
    Code.MIG_ONE: {
        "en": "You asked for {asked} MIG instances; a server can have {most}, because a program can use no more than one. Ask for one, or for whole GPUs.",
        "zh": "您请求 {asked} 个 MIG 实例；每个服务器只能有 {most} 个，因为一个程序只能使用一个实例。请只请求一个，或请求整块 GPU。",
    },
    Code.SHARED_ONE: {
        "en": "You asked for {asked} shares; a server can have {most} share of one GPU. Ask for one, or for whole GPUs.",
        "zh": "您请求 {asked} 个共享份额；每个服务器只能有一个 GPU 的 {most} 个份额。请只请求一个，或请求整块 GPU。",
    },
    Code.VARIANT_UNKNOWN: {
        "en": "There is no image variant {variant}. Choose one of those on the start page.",
        "zh": "没有名为 {variant} 的镜像。请在启动页面上选择。",
    },
    Code.VARIANT_NOT_ALLOWED: {
        "en": "Your role may not use the image variant {variant}. Choose one of those on the start page.",
        "zh": "您的角色不能使用镜像 {variant}。请在启动页面上选择。",
    },
    Code.VARIANT_NOT_BUILT: {
        "en": "The image variant {variant} is not on this machine yet. Choose another, or ask the operator to build it.",
        "zh": "镜像 {variant} 尚未在本机构建。请选择其他镜像，或联系管理员。",
    },
    Code.IMAGE_LABELS: {
        "en": "The image of the variant {variant} cannot be used: it carries the label {label}, which only this hub may write. The operator has to build it without.",
        "zh": "镜像 {variant} 无法使用：它带有只能由本平台写入的标签 {label}。管理员需要重新构建该镜像。",
    },
    Code.IMAGE_CHANGED: {
        "en": "The image of the variant {variant} is not the one that was recorded: here is {image}, recorded is {recorded}. Nothing was started; the operator has to look at it, and `gpucampus images build {variant}` makes and records it anew.",
        "zh": "镜像 {variant} 与记录不符：现有 {image}，记录为 {recorded}。未启动任何服务；需要管理员处理，`gpucampus images build {variant}` 会重新构建并记录。",
    },
    Code.IMAGE_UNRECORDED: {
        "en": "Nothing is recorded of the image of the variant {variant} ({image}), so nobody can tell whose it is. Nothing was started; the operator has to run `gpucampus images build {variant}`.",
        "zh": "没有镜像 {variant}（{image}）的记录，无法确认其来源。未启动任何服务；管理员需要运行 `gpucampus images build {variant}`。",
    },
    Code.IMAGE_UNVERIFIED: {
        "en": "The signature of the image of the variant {variant} ({image}) has not been verified with this site's key. Nothing was started; the operator has to run `gpucampus images verify {variant}`.",
        "zh": "镜像 {variant}（{image}）的签名尚未用本站密钥验证。未启动任何服务；管理员需要运行 `gpucampus images verify {variant}`。",
    },
    Code.IMAGE_UNSIGNED: {
        "en": "The image of the variant {variant} ({image}) is not signed. Nothing was started; the operator has to sign it, or take another one.",
        "zh": "镜像 {variant}（{image}）没有签名。未启动任何服务；管理员需要签名或更换镜像。",
    },
    Code.IMAGE_WRONG_KEY: {
        "en": "The image of the variant {variant} ({image}) is signed with another key than this site's. Nothing was started; the operator has to look at it.",
        "zh": "镜像 {variant}（{image}）的签名所用密钥不是本站密钥。未启动任何服务；需要管理员处理。",
    },
    Code.IMAGE_RECORDS: {
        "en": "The record of images cannot be read, so the image of the variant {variant} cannot be trusted. Nothing was started; the operator has to run `gpucampus images build {variant}`, which writes it anew.",
        "zh": "镜像记录无法读取，因此无法信任镜像 {variant}。未启动任何服务；管理员需要运行 `gpucampus images build {variant}` 重新写入记录。",
    },
    Code.DRIVER_TOO_OLD: {
        "en": "{variant} needs driver {needed}; this node has {driver}. Choose an older variant.",
        "zh": "{variant} 需要驱动 {needed}；本节点为 {driver}。请选择较旧的镜像。",
    },
    Code.ARCHITECTURE: {
        "en": "The image variant {variant} has no code for these GPUs (compute capability {capability}). Choose another variant.",
        "zh": "镜像 {variant} 不支持这里的 GPU（计算能力 {capability}）。请选择其他镜像。",
    },
    Code.GPU_MODEL: {
        "en": "You asked for {asked} GPU(s) of the model {model}; no machine here has more than {free}. There are: {models}. Ask for one of these.",
        "zh": "您请求 {asked} 个型号为 {model} 的 GPU；这里的机器最多有 {free} 个。现有型号：{models}。请选择其中之一。",
    },
    Code.GPU_MEMORY: {
        "en": "You asked for {asked} with {needed_gib} GiB of GPU memory each; no machine here has more than {free} such, and the most is {most_gib} GiB. Ask for less.",
        "zh": "您请求 {asked} 个、每个 {needed_gib} GiB 显存；这里的机器最多有 {free} 个，显存最大为 {most_gib} GiB。请减少请求。",
    },
    Code.MIG_PROFILE: {
        "en": "You asked for {asked} MIG instance of the profile {profile}; {free} exist here. There are: {profiles}. Ask for one of these.",
        "zh": "您请求 {asked} 个规格为 {profile} 的 MIG 实例；这里有 {free} 个。现有规格：{profiles}。请选择其中之一。",
    },
    Code.GPU_UNHEALTHY: {
        "en": "Too few GPUs are in order: {unhealthy} of {exist} are out of service and you asked for {asked}. The operator has to look at them.",
        "zh": "可用的 GPU 不足：共 {exist} 个，{unhealthy} 个停用，您请求 {asked} 个。需要管理员处理。",
    },
    Code.GPU_QUARANTINED: {
        "en": "Too few GPUs are ready: {quarantined} of {exist} are in quarantine because the last server did not leave them clean, {free} are left on one machine and you asked for {asked}. The operator has to look at them.",
        "zh": "可用的 GPU 不足：共 {exist} 个，{quarantined} 个因上一个服务器未正常释放而被隔离，单台机器剩余 {free} 个，您请求 {asked} 个。需要管理员处理。",
    },
    Code.GPU_CLOSED: {
        "en": "Too few GPUs take new servers: {closed} of {exist} are closed by the operator, {free} are left on one machine and you asked for {asked}. Try again later, or start without a GPU.",
        "zh": "接受新服务器的 GPU 不足：共 {exist} 个，{closed} 个被管理员关闭，单台机器剩余 {free} 个，您请求 {asked} 个。请稍后再试，或不带 GPU 启动。",
    },
    Code.GPU_FOREIGN: {
        "en": "Too few GPUs are free: on {foreign} of {exist} runs a program from outside this hub, {free} are left on one machine and you asked for {asked}. Try again later, or tell the operator.",
        "zh": "空闲的 GPU 不足：共 {exist} 个，其中 {foreign} 个正被本系统之外的程序使用，单台机器剩余 {free} 个，您请求 {asked} 个。请稍后再试，或联系管理员。",
    },
    Code.NO_GPUS: {
        "en": "You asked for {asked} GPU(s) and no machine here has more than {exist} whole ones. Ask for fewer.",
        "zh": "您请求 {asked} 个 GPU，而这里的机器最多有 {exist} 个完整的 GPU。请减少请求。",
    },
    Code.NODES_CLOSED: {
        "en": "No machine takes new servers at the moment: {closed} of {exist} are closed by the operator. Running servers are not affected; try again later.",
        "zh": "目前没有机器接受新的服务器：共 {exist} 台，{closed} 台被管理员关闭。正在运行的服务器不受影响；请稍后再试。",
    },
    Code.HOST_MEMORY: {
        "en": "Too little memory is left: you asked for {asked_gib} GiB, and the machine with the most has {free_gib} of its {most_gib} GiB left. Ask for less memory, or try again later.",
        "zh": "内存不足：您请求 {asked_gib} GiB，余量最多的机器在 {most_gib} GiB 中剩余 {free_gib} GiB。请减少内存，或稍后再试。",
    },
    Code.HOST_CPUS: {
        "en": "Too few processors are left: your server needs {asked}, and the machine with the most has {free} of its {most} left. Try again later.",
        "zh": "处理器不足：您的服务器需要 {asked} 个，余量最多的机器在 {most} 个中剩余 {free} 个。请稍后再试。",
    },
    Code.MEMORY_RANGE: {
        "en": "You asked for {asked_gib} GiB of memory; allowed is {least_gib} to {most_gib} GiB. Choose a size in that range.",
        "zh": "您请求 {asked_gib} GiB 内存；允许的范围是 {least_gib} 到 {most_gib} GiB。",
    },
    Code.OPTION_UNKNOWN: {
        "en": "There is no option {option}. Allowed are {allowed}.",
        "zh": "没有选项 {option}。允许的选项是 {allowed}。",
    },
    Code.OPTION_TYPE: {
        "en": "The option {option} is not usable: allowed is {allowed}.",
        "zh": "选项 {option} 无效：允许的是 {allowed}。",
    },
    Code.OPTIONS_TOO_LARGE: {
        "en": "The options are too large: allowed are {most} bytes. Send only what the start page offers.",
        "zh": "选项过大：最多 {most} 字节。请只发送启动页面上的选项。",
    },
    Code.NAME_INVALID: {
        "en": "The user name {name} cannot be used here: allowed are a to z, 0 to 9, dot, dash and underscore, "
        "up to {most} characters, a letter first. Ask the operator for another account name.",
        "zh": "用户名 {name} 无法使用：允许 a-z、0-9、点、短横和下划线，最多 {most} 个字符，以字母开头。请联系管理员更换账号名。",
    },
    Code.PERSON_UNKNOWN: {
        "en": "{name} has never signed in here, so there is no home to start a server with. Let them sign in once first.",
        "zh": "{name} 从未在此登录，因此没有主目录。请先登录一次。",
    },
    Code.PERSON_CONFLICT: {
        "en": "The account name {name} belongs to another person's home. Nothing was started; ask the operator to look at it.",
        "zh": "账号名 {name} 对应的主目录属于另一个人。未启动任何服务；请联系管理员。",
    },
    Code.UIDS_EXHAUSTED: {
        "en": "Every user number from {least} to {most} is in use. The operator has to widen homes.uid_max in the settings.",
        "zh": "从 {least} 到 {most} 的用户编号都已用完。管理员需要在设置中调大 homes.uid_max。",
    },
    Code.HOME_OWNER: {
        "en": "Your home belongs to user number {owner} instead of {uid}. Nothing was changed; ask the operator to look at it.",
        "zh": "您的主目录属于用户编号 {owner} 而不是 {uid}。未做任何更改；请联系管理员。",
    },
    Code.HOME_NOT_FOLDER: {
        "en": "Your home {home} is not a plain folder. Nothing was changed; ask the operator to look at it.",
        "zh": "您的主目录 {home} 不是普通文件夹。未做任何更改；请联系管理员。",
    },
    Code.HOME_UNAVAILABLE: {
        "en": "Home storage is not available ({why}). Your files are safe; please try again later.",
        "zh": "主目录存储不可用（{why}）。您的文件是安全的；请稍后再试。",
    },
    Code.DISK_FULL: {
        "en": "The disk for {disk} is {percent} % full, and from {most} % on no new server is started, so that those that run can go on. "
        "Your files are safe. Delete what you need no more in a server that still runs, or ask the operator to make room.",
        "zh": "存放 {disk} 的磁盘已使用 {percent} %；达到 {most} % 后不再启动新的服务器，以便正在运行的服务器继续工作。"
        "您的文件是安全的。请在仍在运行的服务器中删除不需要的文件，或联系管理员清理空间。",
    },
    Code.ENGINE_UNKNOWN: {
        "en": "The container engine does not answer, so nothing was started. Running servers are not affected; please try again in a minute.",
        "zh": "容器引擎没有响应，因此未启动任何服务。正在运行的服务器不受影响；请稍后再试。",
    },
    Code.ENGINE_REFUSED: {
        "en": "The container engine could not start your server: {why}. Nothing is left of it; the operator has to look at it.",
        "zh": "容器引擎无法启动您的服务器：{why}。未留下任何内容；需要管理员处理。",
    },
    Code.GPU_DRIVER_MISMATCH: {
        "en": "GPUs cannot be handed out: the NVIDIA driver was updated and the machine still runs the old one. "
        "An administrator must reboot it; servers without a GPU can be started.",
        "zh": "无法分配 GPU：NVIDIA 驱动已更新，但本机仍在运行旧版本。管理员必须重启本机；不带 GPU 的服务器仍可启动。",
    },
    Code.GPU_GONE: {
        "en": "The GPU {gpu} is no longer there, so your server was not started and nothing is left of it. "
        "Try again for another GPU; the operator has to look at this one.",
        "zh": "GPU {gpu} 已不存在，因此未启动您的服务器，也未留下任何内容。请重试以使用其他 GPU；管理员需要检查此 GPU。",
    },
    Code.GPU_RUNTIME_MISSING: {
        "en": "The container engine cannot hand out GPUs: NVIDIA's driver or container toolkit is missing or not loaded. "
        "The operator has to look at it; servers without a GPU can be started.",
        "zh": "容器引擎无法分配 GPU：NVIDIA 驱动或容器工具包缺失或未加载。需要管理员处理；不带 GPU 的服务器仍可启动。",
    },
    Code.HUB_BLOCKED: {
        "en": "Servers cannot reach the hub: {firewall} on its machine blocks port {port}. Nothing was started; the operator has to open it.",
        "zh": "服务器无法访问本平台：所在主机的 {firewall} 阻止了端口 {port}。未启动任何服务；需要管理员放行。",
    },
    Code.NOT_CHOSEN: {
        "en": "A link never starts a server. Look at the choices and press Start.",
        "zh": "链接不会启动服务器。请查看选项并点击“启动”。",
    },
    Code.NOT_ANSWERING: {
        "en": "The container runs, but JupyterLab did not answer within {seconds} s and was stopped. Try again; "
        "if it happens again, tell the operator.",
        "zh": "容器已运行，但 JupyterLab 在 {seconds} 秒内没有响应，已被停止。请重试；若再次发生，请联系管理员。",
    },
    EndCode.OUT_OF_MEMORY: {
        "en": "Your server was ended because it used all of its {memory_gib} GiB of memory. Start it again with more memory, or use less.",
        "zh": "您的服务器用尽了 {memory_gib} GiB 内存而被终止。请用更多内存重新启动，或减少使用。",
    },
    EndCode.KILLED: {
        "en": "Your server was killed from outside. Your files are safe; start it again.",
        "zh": "您的服务器被外部终止。您的文件是安全的；请重新启动。",
    },
    EndCode.STOPPED: {
        "en": "Your server was stopped. Your files are safe.",
        "zh": "您的服务器已停止。您的文件是安全的。",
    },
    EndCode.NOT_STARTED: {
        "en": "Your server could not be started: {error} (status {status}). The operator has to look at it.",
        "zh": "您的服务器无法启动：{error}（状态 {status}）。需要管理员处理。",
    },
    EndCode.FAILED: {
        "en": "Your server ended by itself with status {status}. Start it again; if it happens again, tell the operator.",
        "zh": "您的服务器以状态 {status} 自行结束。请重新启动；若再次发生，请联系管理员。",
    },
    EndCode.FINISHED: {"en": "Your server ended by itself. Start it again.", "zh": "您的服务器自行结束。请重新启动。"},
    EndCode.EXPIRED: {
        "en": "Your server reached the end of its time and was stopped. Your files are safe; start it again.",
        "zh": "您的服务器已到时限并被停止。您的文件是安全的；请重新启动。",
    },
    EndCode.GONE: {
        "en": "Your server was removed from outside. Your files are safe; start it again.",
        "zh": "您的服务器被外部移除。您的文件是安全的；请重新启动。",
    },
    HealthCode.GPU_MISSING: {
        "en": "Your server was not started: {missing} of its {leased} GPU(s) cannot be used in it ({gpus}). The hub looks at them now. Try again; if it happens again, tell the operator.",
        "zh": "您的服务器未启动：其 {leased} 个 GPU 中有 {missing} 个无法在其中使用（{gpus}）。平台正在检查。请重试；若再次发生，请联系管理员。",
    },
    HealthCode.GPU_EXTRA: {
        "en": "Your server was not started: it would have reached {others} GPU(s) that it does not hold ({gpus}). The operator has to look at how this machine hands out GPUs.",
        "zh": "您的服务器未启动：它会访问到 {others} 个不属于它的 GPU（{gpus}）。管理员需要检查本机分配 GPU 的方式。",
    },
    HealthCode.DRIVER_SILENT: {
        "en": "Your server was not started: the NVIDIA driver cannot be asked in it ({why}). The hub looks at the GPU now. Try again; if it happens again, tell the operator.",
        "zh": "您的服务器未启动：在其中无法查询 NVIDIA 驱动（{why}）。平台正在检查 GPU。请重试；若再次发生，请联系管理员。",
    },
    HealthCode.DRIVER_OLD: {
        "en": "Your server was not started: its image needs the NVIDIA driver {needed} or newer; here is {driver}. Choose an older variant.",
        "zh": "您的服务器未启动：其镜像需要 NVIDIA 驱动 {needed} 或更新；本机为 {driver}。请选择较旧的镜像。",
    },
    HealthCode.VERSION: {
        "en": "Your server was not started: its image should hold {part} {expected} and holds {found}. Choose another variant; the operator has to build this one anew.",
        "zh": "您的服务器未启动：其镜像应包含 {part} {expected}，实际为 {found}。请选择其他镜像；管理员需要重新构建该镜像。",
    },
    HealthCode.BROKEN: {
        "en": "Your server was not started: its image could not be checked ({why}). Choose another variant; the operator has to look at this one.",
        "zh": "您的服务器未启动：无法检查其镜像（{why}）。请选择其他镜像；管理员需要检查该镜像。",
    },
    NoticeCode.SHARE_EXCEEDED: {
        "en": "Your server uses {used_gib} GiB of GPU memory and its share is {share_gib} GiB. "
        "Free some within {grace} seconds, or its biggest process is ended.",
        "zh": "您的服务器使用了 {used_gib} GiB 显存，其份额为 {share_gib} GiB。请在 {grace} 秒内释放，否则占用最大的进程将被终止。",
    },
    NoticeCode.SHARE_ENDED: {
        "en": "Process {pid} of your server was ended: it held {process_gib} GiB of GPU memory, and your server used "
        "{used_gib} GiB where its share is {share_gib} GiB. Use a smaller batch or model, or ask for a whole GPU.",
        "zh": "您服务器的进程 {pid} 已被终止：它占用 {process_gib} GiB 显存，您的服务器共使用 {used_gib} GiB，"
        "而份额为 {share_gib} GiB。请减小批量或模型，或申请整块 GPU。",
    },
    Phase.CHECKED: {
        "en": "Your choice is allowed: {variant}, {memory_gib} GiB of memory.",
        "zh": "选择有效：{variant}，{memory_gib} GiB 内存。",
    },
    Phase.HOME: {"en": "Your home is ready.", "zh": "主目录已就绪。"},
    Phase.PLACED: {"en": "You hold {gpus} GPU(s){simulated}.", "zh": "您持有 {gpus} 个 GPU{simulated}。"},
    Phase.CREATED: {"en": "The container is made.", "zh": "容器已创建。"},
    Phase.STARTED: {"en": "The container runs; waiting for JupyterLab.", "zh": "容器已运行；正在等待 JupyterLab。"},
    Phase.ANSWERS: {"en": "JupyterLab answers.", "zh": "JupyterLab 已响应。"},
}


def sentence(refusal: Refusal, language: Language = "en") -> str:
    """Say a refusal."""
    return _say(refusal.code, dict(refusal.params), language)


def ended(end: End, language: Language = "en") -> str:
    """Say why a server ended."""
    return _say(end.code, dict(end.params), language)


def phase(step: Phase, language: Language = "en", **params: str | int | float) -> str:
    """Say how far a start has come."""
    return _say(step, params, language)


def notice(told: Notice, language: Language = "en") -> str:
    """Say what the user of a running server is told."""
    return _say(told.code, dict(told.params), language)


def size(number: float) -> str:
    """Bytes as GiB with as few digits as needed: 1, 1.5, 0.25."""
    return f"{number / GIB:.2f}".rstrip("0").rstrip(".")


def _say(code: StrEnum, params: Mapping[str, str | int | float], language: Language) -> str:
    """Fill a text. Sizes in bytes are also offered as `<name>_gib`; a value that is missing shows as a question mark."""
    values: dict[str, str | int | float] = dict(params)
    values |= {f"{key}_gib": size(value) for key, value in params.items() if isinstance(value, int | float)}
    return TEXTS[code][language].format_map(_Missing(values))


class _Missing(dict[str, str | int | float]):
    def __missing__(self, key: str) -> str:
        return "?"
