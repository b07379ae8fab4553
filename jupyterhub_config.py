"""Wiring only: settings in, JupyterHub's traits out. Rules are in spawner/, values in the settings file."""

import os
import sys
from pathlib import Path

from spawner import auth, campus, metrics, pages, runtime
from spawner.docker_spawner import GPUDockerSpawner
from spawner.keeping import lock
from spawner.services import services
from spawner.settings import SettingsError, load

try:
    settings = load()
    lock.admit(settings.state)
    campus.apply(settings.campus.values(), settings.network.subnet, settings.state)
    provider, client_secret = auth.discover(settings.sign_in.issuer), settings.sign_in.client_secret()
except (SettingsError, lock.KeepingError, campus.CampusError, auth.ProviderError) as error:
    sys.exit(f"gpucampus: {error}")
runtime.prepare(settings)
metrics.publish()
hub, gateway = settings.hub, settings.network.gateway

c = get_config()

# the proxy is a process of its own, so that a hub restart cuts nobody
c.JupyterHub.bind_url = hub.public_url
c.JupyterHub.subdomain_host = hub.public_url
c.JupyterHub.hub_bind_url = f"http://{gateway}:{hub.hub_port}"
c.ConfigurableHTTPProxy.should_start = False
c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{hub.proxy_api_port}"
c.JupyterHub.cleanup_servers = False
c.JupyterHub.cleanup_proxy = False
c.JupyterHub.db_url = f"sqlite:///{settings.state / 'hub.sqlite'}"
c.JupyterHub.cookie_secret_file = str(settings.state / "secrets" / "cookie_secret")

c.JupyterHub.template_paths = [str(pages.TEMPLATES)]
c.JupyterHub.template_vars = pages.template_vars(hub.language, simulated=settings.gpus.simulated)
c.JupyterHub.tornado_settings = {"slow_spawn_timeout": 1}

c.JupyterHub.spawner_class = GPUDockerSpawner
c.JupyterHub.allow_named_servers = hub.servers_per_person > 1
c.JupyterHub.named_server_limit_per_user = hub.servers_per_person - 1  # the default server is not a named one
c.Spawner.start_timeout = settings.containers.start_timeout + 60  # our own wait ends first and says why
c.Spawner.http_timeout = 60
c.Spawner.default_url = "/lab"

sign_in = settings.sign_in
c.JupyterHub.authenticator_class = auth.CampusAuthenticator
c.CampusAuthenticator.audit_file = str(settings.state / "log" / "audit.jsonl")
c.Authenticator.enable_auth_state = True
c.Authenticator.manage_groups = True
c.Authenticator.refresh_pre_spawn = True
c.Authenticator.admin_groups = set(sign_in.admin_groups)
c.Authenticator.allowed_groups = set(settings.allowed_groups())
c.OAuthenticator.login_service = sign_in.title
c.OAuthenticator.client_id = sign_in.client_id
c.OAuthenticator.client_secret = client_secret
c.OAuthenticator.oauth_callback_url = f"{hub.public_url}/hub/oauth_callback"
c.OAuthenticator.authorize_url = provider["authorization_endpoint"]
c.OAuthenticator.token_url = provider["token_endpoint"]
c.OAuthenticator.userdata_url = provider["userinfo_endpoint"]
c.OAuthenticator.logout_redirect_url = provider.get("end_session_endpoint", "")
c.OAuthenticator.scope = ["openid", "profile", "email", "groups"]
c.OAuthenticator.username_claim = sign_in.username_claim
c.OAuthenticator.auth_state_groups_key = f"oauth_user.{sign_in.groups_claim}"
c.OAuthenticator.http_request_kwargs = {"connect_timeout": 3, "request_timeout": 5}

c.JupyterHub.services, c.JupyterHub.load_roles = services(settings)

# an operator who knows JupyterHub can override anything above
for part in sorted((settings.config_dir or Path(os.devnull)).glob("*.py")):
    load_subconfig(str(part))
