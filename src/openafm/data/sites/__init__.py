"""Generated web sites with gold main texts, and a local server for them.

site = SiteConfig(seed=0, num_pages=100).build()
with serve(site) as server:
    ...  # fetch below server.url; server.requests is the log
"""

from openafm.data.sites.cms_layouts import CMS_LAYOUTS
from openafm.data.sites.layouts import LAYOUTS
from openafm.data.sites.pictures import Asset
from openafm.data.sites.scripts import SCRIPT_KINDS
from openafm.data.sites.server import FailurePhase, RequestRecord, SiteServer, serve, trap_links
from openafm.data.sites.site import ROBOTS_KINDS, Site, SiteConfig, SitePage, generate_site

__all__ = [
    "CMS_LAYOUTS",
    "LAYOUTS",
    "ROBOTS_KINDS",
    "SCRIPT_KINDS",
    "Asset",
    "FailurePhase",
    "RequestRecord",
    "Site",
    "SiteConfig",
    "SitePage",
    "SiteServer",
    "generate_site",
    "serve",
    "trap_links",
]
